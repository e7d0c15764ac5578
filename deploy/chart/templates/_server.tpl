{{- /* Given (list . NAME COMPONENT VALUES): the pods that answer, with replicas and autoscaling of
these values. */ -}}
{{- define "dpledger.server" -}}
{{- $name := index . 1 -}}
{{- $component := index . 2 -}}
{{- $given := index . 3 -}}
{{- $root := index . 0 -}}
{{- with $root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{- include "dpledger.labels" . | nindent 4 }}
spec:
  {{- if not $given.autoscaling.enabled }}
  replicas: {{ $given.replicas }}
  {{- end }}
  # One more is started and ready before one of the old ends.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  selector:
    matchLabels: {{- include "dpledger.selector" . | nindent 6 }}
      app.kubernetes.io/component: {{ $component }}
  template:
    metadata:
      labels: {{- include "dpledger.selector" . | nindent 8 }}
        app.kubernetes.io/component: {{ $component }}
      annotations:
        # A changed setting replaces the pods, so that they read it.
        checksum/settings: {{ include (print $root.Template.BasePath "/settings.yaml") . | sha256sum }}
    spec:
      {{- include "dpledger.pod" . | nindent 6 }}
      # Longer than it drains and finishes requests, or the rest would be cut off.
      terminationGracePeriodSeconds: 45
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "dpledger.selector" . | nindent 14 }}
              app.kubernetes.io/component: {{ $component }}
      # Not a Job: nothing would make the pods wait for it. Here no pod serves before the schema is
      # right; of pods that start at once, one migrates and the others find it done. The owner's
      # password stays with this container; the service's role cannot change the schema.
      initContainers:
        - name: migrate
          image: {{ include "dpledger.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args: [migrate]
          env:
            - name: DPLEDGER_DATABASE_URL
              value: {{ include "dpledger.database" (list . .Values.database.owner) | quote }}
            - name: DPLEDGER_DATABASE_PASSWORD_FILE
              value: /run/secrets/dpledger-owner/owner_password
          resources:
            requests: {cpu: 100m, memory: 256Mi}
            limits: {memory: 1Gi}
          {{- include "dpledger.locked" . | nindent 10 }}
          volumeMounts:
            - {name: owner, mountPath: /run/secrets/dpledger-owner, readOnly: true}
            {{- include "dpledger.mounts" . | nindent 12 }}
      containers:
        - name: dpledger
          image: {{ include "dpledger.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args: [serve, --host, 0.0.0.0]
          ports:
            - {name: http, containerPort: 8000}
          {{- include "dpledger.environment" . | nindent 10 }}
            - name: DPLEDGER_ADMIN_KEY_FILE
              value: /run/secrets/dpledger/admin_key
            {{- if eq $component "reader" }}
            - name: DPLEDGER_ROLE
              value: reader
            {{- end }}
          resources: {{- toYaml .Values.resources | nindent 12 }}
          {{- include "dpledger.locked" . | nindent 10 }}
          # While it starts it is asked often, and given time for a long check of the schema.
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 2
            failureThreshold: 60
          # Away from it while the database is away, or while it drains.
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 3
            timeoutSeconds: 5
            failureThreshold: 2
          # Only the process itself: to start it anew does not bring a database back.
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          volumeMounts:
            - {name: secrets, mountPath: /run/secrets/dpledger, readOnly: true}
            {{- include "dpledger.mounts" . | nindent 12 }}
      volumes:
        - name: secrets
          secret: {secretName: {{ .Values.secrets.service }}, defaultMode: 0440}
        - name: owner
          secret: {secretName: {{ .Values.secrets.owner }}, defaultMode: 0440}
        {{- include "dpledger.volumes" . | nindent 8 }}
---
# Nodes are emptied one pod at a time.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- include "dpledger.labels" . | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels: {{- include "dpledger.selector" . | nindent 6 }}
      app.kubernetes.io/component: {{ $component }}
{{- with $given.autoscaling }}
{{- if .enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels: {{- include "dpledger.labels" $root | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}
  minReplicas: {{ .min }}
  maxReplicas: {{ .max }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .cpuPercent }}}
  behavior:
    # Each pod that ends closes the streams of its readers, who then ask another.
    scaleDown: {stabilizationWindowSeconds: 600}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
