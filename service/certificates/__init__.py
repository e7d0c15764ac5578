"""Certificates: facts, what follows from them and a signature, for who trusts nobody."""
