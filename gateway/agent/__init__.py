"""Writing the copy: the model behind one protocol, the offline writer, prices."""
