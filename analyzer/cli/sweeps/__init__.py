"""The command of many estimates."""
