"""A declaration that kernels of another module name with this one: `lanes.LANE.CARS`."""

from amqpscope.dissector.kernels.state import Matrix, column


class LANE(Matrix):
    """Lanes."""

    NUMBER = column("its number")
    CARS = column("cars on it")
