"""Named lists of experiments, such as the papers' tables: python -m fedray.studies."""
