"""The last-iterate bound of a run: from its events and what was declared to one bound."""
