"""When commands run on an emulated device's own clock, and how hot it is: no thread, no waiting."""

from __future__ import annotations

from dataclasses import dataclass

from client.backends.emulated.spec import Heat


@dataclass(frozen=True)
class Span:
    """A command's place on the device's clock: transfer up, compute, transfer down, in that order.

    ``compute_s`` and ``transfer_s`` fill the time from ``start_s`` to ``end_s``.
    """

    start_s: float
    end_s: float
    compute_s: float
    transfer_s: float


class Thermometer:
    """Follows busy and idle time. ``level_s``: busy seconds that are not yet cooled away."""

    def __init__(self, heat: Heat | None) -> None:
        self._heat = heat
        self._level_s = 0.0
        self._hot_since_s: float | None = None
        self._seen_s: float | None = None  # up to here, time is accounted for

    @property
    def hot(self) -> bool:
        """Whether it was hot when its last command ended."""
        return self._hot_since_s is not None

    @property
    def factor(self) -> float:
        """By how much a command takes longer that follows at once."""
        return self._heat.factor if self._heat is not None and self.hot else 1.0

    def factor_at(self, start_s: float) -> float:
        """By how much a command that starts then, after an idle time, takes longer."""
        heat = self._heat
        if heat is None:
            return 1.0
        idle_s = 0.0 if self._seen_s is None else start_s - self._seen_s
        self._seen_s = start_s
        if heat.cools_idle_s is not None:
            self._level_s -= idle_s * heat.after_busy_s / heat.cools_idle_s
            if self._level_s <= 0:
                self._cool()
        elif heat.cools_s is not None and self._hot_since_s is not None:
            cool = start_s - self._hot_since_s >= heat.cools_s
            if cool:
                self._cool()
        return self.factor

    def was_busy(self, end_s: float) -> None:
        """The command that ``factor_at`` was asked for ended."""
        if self._heat is None or self._seen_s is None:
            return
        most_s = self._heat.after_busy_s
        self._level_s = min(self._level_s + end_s - self._seen_s, most_s)
        self._seen_s = end_s
        if self._level_s >= most_s and not self.hot:
            self._hot_since_s = end_s

    def _cool(self) -> None:
        self._level_s, self._hot_since_s = 0.0, None


class Schedule:
    """One command after the other, each begins when it has arrived and the one before has ended."""

    def __init__(self, compute_factor: float, heat: Heat | None) -> None:
        self._compute_factor = compute_factor
        self._thermometer = Thermometer(heat)
        self.free_s = float("-inf")
        self.busy_s = 0.0

    @property
    def factor(self) -> float:
        """How much slower than the inner device it computes at the moment."""
        return self._compute_factor * self._thermometer.factor

    def add(
        self, arrived_s: float, reference_s: float, transfer_s: float, prepare_s: float = 0.0
    ) -> Span:
        """A command that takes ``reference_s`` on the inner device, and the link's time.

        ``prepare_s``: what was built for it meanwhile, which takes as long for any device.
        """
        start_s = max(arrived_s, self.free_s)
        compute_s = reference_s * self._compute_factor * self._thermometer.factor_at(start_s)
        compute_s += prepare_s
        end_s = start_s + compute_s + transfer_s
        self._thermometer.was_busy(end_s)
        self.free_s = end_s
        self.busy_s += compute_s + transfer_s
        return Span(start_s, end_s, compute_s, transfer_s)
