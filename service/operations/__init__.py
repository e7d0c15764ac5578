"""What operators watch: health, metrics, backups and webhooks."""
