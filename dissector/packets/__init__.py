"""Packets to TCP segments: link layers, IP, fragments, tunnels; captures that overlap in time, merged."""
