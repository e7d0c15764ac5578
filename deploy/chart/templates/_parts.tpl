{{- define "dpledger.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "dpledger.selector" -}}
app.kubernetes.io/name: dpledger
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dpledger.labels" -}}
{{ include "dpledger.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Given (list . ROLE): the address of the database, without a password. */ -}}
{{- define "dpledger.database" -}}
{{- $root := index . 0 -}}
{{- $database := $root.Values.database -}}
postgresql://{{ index . 1 }}@{{ $database.host }}:{{ $database.port }}/{{ $database.name }}?sslmode={{ $database.sslmode }}
{{- if $database.rootCertificate.secret }}&sslrootcert=/run/secrets/dpledger-ca/{{ $database.rootCertificate.key }}{{ end -}}
{{- end }}

{{- define "dpledger.pod" -}}
serviceAccountName: {{ .Release.Name }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001 # the files of the secrets and of the volumes belong to this group
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "dpledger.locked" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- /* What each container but the one that migrates reads. */ -}}
{{- define "dpledger.environment" -}}
envFrom:
  - configMapRef: {name: {{ .Release.Name }}}
env:
  - name: DPLEDGER_DATABASE_PASSWORD_FILE
    value: /run/secrets/dpledger/database_password
  - name: DPLEDGER_SIGNING_KEY_FILE
    value: /run/secrets/dpledger/signing_key
{{- end }}

{{- define "dpledger.mounts" -}}
- {name: temporary, mountPath: /tmp}
{{- if .Values.database.rootCertificate.secret }}
- {name: ca, mountPath: /run/secrets/dpledger-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "dpledger.volumes" -}}
- name: temporary
  emptyDir: {sizeLimit: 64Mi}
{{- with .Values.database.rootCertificate.secret }}
- name: ca
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
