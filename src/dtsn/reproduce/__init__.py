"""The paper's experiments: what is run, the raw rows, and the pages made from them."""
