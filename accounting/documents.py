"""The rows of the founding documents: what each system is, its verdict, and where it lives here."""
