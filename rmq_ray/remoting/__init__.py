"""RocketMQ's wire protocol: frames, headers, bodies, connections. Turns frames into values and
back; decides nothing.
"""
