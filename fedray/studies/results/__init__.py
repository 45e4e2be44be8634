"""The published results: data of finished runs (docs/results/*.csv), and the page that is made of them."""
