"""One module a dataset: its row → a conversation, or a reason why not."""
