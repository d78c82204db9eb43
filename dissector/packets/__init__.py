"""From packets to TCP segments: link layers, IP, fragments, tunnels, and merging of captures that overlap in time."""
