# A dataset of dpledger as a resource of the generic REST provider Mastercard/restapi.
terraform {
  required_version = ">= 1.5"
  required_providers {
    restapi = {
      source  = "Mastercard/restapi"
      version = "~> 1.20"
    }
  }
}

variable "url" {
  description = "Address of the service, without a slash at its end."
  type        = string
}

variable "key" {
  description = "API key of scope admin."
  type        = string
  sensitive   = true
}

provider "restapi" {
  uri                  = var.url
  write_returns_object = true
  id_attribute         = "name"
  headers = {
    Authorization = "Bearer ${var.key}"
    Content-Type  = "application/json"
  }
}

# A dataset is never deleted, and its limit is changed with a reason and a revision, which this
# provider cannot send. So Terraform creates it, and ignores what is changed later.
resource "restapi_object" "letters" {
  path         = "/v1/datasets"
  read_path    = "/v1/datasets/{id}"
  destroy_path = "/v1/datasets/{id}"
  data = jsonencode({
    name                 = "letters"
    dataset_size         = 60000
    neighboring_relation = "add_or_remove_one"
    privacy_unit         = "one letter"
    budget               = { epsilon = 3.0, delta = 0.00001 }
  })

  lifecycle {
    prevent_destroy = true
    ignore_changes  = [data]
  }
}

output "letters" {
  value = restapi_object.letters.api_data
}
