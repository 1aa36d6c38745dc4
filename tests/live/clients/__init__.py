"""What a user of each client would write. Each script runs in an environment that has the client, and not this project.

`python SCRIPT BASE_URL` prints one JSON object of what the client understood, which `test_clients.py` looks at.
"""
