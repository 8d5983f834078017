"""What commands show: tables, charts and screens."""
