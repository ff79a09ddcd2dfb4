"""The HTML page that shows the runs of a folder: figures, tables, and where the tokens of each output came from."""
