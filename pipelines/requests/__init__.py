"""The table `rpcs`: synchronous requests and their answers, of any protocol."""
