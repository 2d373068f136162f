"""What the pages request as JSON: one module per page, each with its ROUTES."""
