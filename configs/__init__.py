"""Shipped YAML: experiments at the top, the parts they are composed from in folders."""
