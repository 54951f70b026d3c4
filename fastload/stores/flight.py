"""How many requests a store gets at once and in a second, and which of them are made twice.

The number in flight is found by trying: more while that brings more bytes a second, fewer where it
brings less, half where the store answers that it is too many. A request that takes longer than 99
of 100 do is made a second time, and the first answer is taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fastload.stores.reads import LOOK, current, sleep

logger = logging.getLogger("fastload")

# Requests at once from one machine. At 30 ms each that is 1,000 a second.
START = 32
FEWEST, MOST = 4, 256
# Requests a second from one machine. S3 serves 5,500 GETs a second for each prefix (its user guide,
# "Best practices design patterns: optimizing Amazon S3 performance").
S3_RATE = 5_000.0
# Answers for each request in flight, before the number is changed.
_WINDOW = 4
# Rates that differ by a smaller fraction count as equal.
_GAIN = 0.1
# Answers whose times are kept.
_REMEMBERED = 512
# Answers between two estimates of how long they take; an estimate costs 0.1 ms.
_KNOWN_FOR = 50
# Answers before any request counts as slow, which the slowest of a hundred do.
_ENOUGH = 100
# Seconds before a request may be made twice.
_SOONEST = 0.05
# The share of all requests that may be made twice.
_TWICE = 0.02


class Flight:
    """The requests of one store. All methods may be called by several threads."""

    def __init__(
        self,
        start: int = START,
        rate: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rate`: requests a second, at most."""
        self.limit = max(FEWEST, min(MOST, start))
        self.requests, self.asked_twice = 0, 0
        self.rate, self._clock = rate, clock
        self._changed = threading.Condition()
        self._in_flight, self._waited = 0, False
        self._second, self._in_second, self._warned = -1, 0, False
        self._window_began, self._window_bytes, self._window_count = clock(), 0, 0
        self._last_rate, self._grew = 0.0, True
        self._refused_at = float("-inf")
        self._times: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        self._answers, self._known_at = 0, -_KNOWN_FOR
        self._longest = self._usual = 0.0
        """Of the last answers: seconds of the slowest of a hundred, and bytes of the median."""

    def begin(self) -> None:
        """Wait until another request may be made. Raises CancelledReadError."""
        with self._changed:
            while self._in_flight >= self.limit:
                self._waited = True
                current().check()
                self._changed.wait(LOOK)
            self._in_flight += 1
            self.requests += 1
            pause = self._pause()
        if pause:
            try:
                sleep(pause)
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """A request is over, whether it succeeded or not."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify()

    def answered(self, seconds: float, size: int) -> None:
        """A request brought `size` bytes after `seconds`."""
        self.answered_many([(seconds, size)])

    def answered_many(self, answers: Sequence[tuple[float, int]], *, waited: bool = False) -> None:
        """Several requests, of each its seconds and bytes.

        Args:
            waited: whether a request had to wait, of those that did not ask `begin`.
        """
        with self._changed:
            self._times.extend(answers)
            self._window_bytes += sum(size for _, size in answers)
            self._window_count += len(answers)
            self._answers += len(answers)
            self._waited |= waited
            if self._window_count >= _WINDOW * self.limit:
                self._adapt()

    def sent(self, count: int) -> None:
        """So many requests were made without `begin`: others hold them to the limit and rate."""
        with self._changed:
            self.requests += count

    def refused(self) -> None:
        """The store answered that it gets too many requests: halve their number, at most once a
        second."""
        with self._changed:
            now = self._clock()
            if now - self._refused_at > 1.0:
                self._refused_at = now
                self._set(self.limit // 2)
                self._grew = False

    def patience(self, size: int) -> float | None:
        """Seconds after which a request for `size` bytes is made a second time: 99 of 100 are
        faster. None where that is not known yet."""
        with self._changed:
            if len(self._times) < _ENOUGH:
                return None
            if self._answers - self._known_at >= _KNOWN_FOR:
                seconds, sizes = map(sorted, zip(*self._times, strict=True))
                self._longest = seconds[round(0.99 * (len(seconds) - 1))]
                self._usual = max(1.0, sizes[len(sizes) // 2])
                self._known_at = self._answers
            return max(_SOONEST, self._longest * max(1.0, size / self._usual))

    def may_ask_twice(self) -> bool:
        """Whether one more request may be made twice; counts it."""
        with self._changed:
            if self.asked_twice >= _TWICE * self.requests:
                return False
            self.asked_twice += 1
            return True

    def _adapt(self) -> None:
        """Raise the limit where the last change brought more bytes a second, lower it where it
        brought fewer; leave it where no request had to wait, as there were too few to tell."""
        now = self._clock()
        rate = self._window_bytes / max(1e-9, now - self._window_began)
        if self._waited:
            better = rate > self._last_rate * (1 + _GAIN)
            worse = rate < self._last_rate * (1 - _GAIN)
            if better and self._grew:
                self._set(self.limit * 3 // 2)
            elif worse and self._grew:
                self._set(self.limit * 2 // 3)
                self._grew = False
            elif worse:
                self._set(self.limit * 3 // 2)
                self._grew = True
            self._last_rate = rate
        self._window_began, self._window_bytes, self._window_count = now, 0, 0
        self._waited = False

    def _set(self, limit: int) -> None:
        self.limit = max(FEWEST, min(MOST, limit))
        self._changed.notify_all()

    def _pause(self) -> float:
        """Seconds to wait so that no second has more requests than the rate."""
        now = self._clock()
        if int(now) > self._second:
            self._second, self._in_second = int(now), 0
        if self._in_second >= self.rate:
            self._second, self._in_second = self._second + 1, 0
            self.say_held()
        self._in_second += 1
        return max(0.0, self._second - now)

    def say_held(self) -> None:
        """Warn, once, that no second has more requests than the rate."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "Requests are held at %.0f a second, this process's share of what one prefix "
                "of S3 gives; spread the objects over several, or store them as tar shards.",
                self.rate,
            )
