"""The systems that the engine is measured beside, behind one interface."""
