"""The JSON API of the pages: one module per page, each with its ROUTES."""
