"""What a Keras model is: networks by name, and any model's library, outputs, cost, description and fingerprint."""
