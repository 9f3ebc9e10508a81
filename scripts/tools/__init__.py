"""What keeps the repository: its pictures, guide, zoo, tables and page of reliability, ``python -m scripts.tools.<name>``."""
