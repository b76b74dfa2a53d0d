"""From clients' models to the server's: robust means and server optimizers.

May import `core` and `utils`.
"""
