"""Builders of a service's children: values in, one manifest out. They decide nothing and know no cluster."""
