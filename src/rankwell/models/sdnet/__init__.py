"""SDNet over a frozen encoder's features."""
