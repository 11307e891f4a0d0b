WHERE = "site-packages"
