"""The commands of `dpledger`, a file a group; service.cli puts them together."""
