"""What is generated of the chart: its README, its values schema and its dashboard. `make chart` writes them."""
