WHERE = "third_party"
