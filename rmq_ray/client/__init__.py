"""The asking parties: producers and consumers, in any process. No Ray."""
