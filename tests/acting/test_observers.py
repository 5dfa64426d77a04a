"""Observers of the info dict."""

import dm_env
import numpy as np

from rlpad.acting.observers import InfoObserver, get_info


class WithInfo:
    def __init__(self, infos):
        self.infos, self.at = infos, -1

    def next(self):
        self.at += 1
        return self

    def get_info(self):
        return self.infos[self.at]


START = dm_env.restart(0)
MID = dm_env.transition(1.0, 0)


def test_last_and_total_by_hand():
    environment = WithInfo([{"lives": 3, "hits": 100}, {"lives": 2, "hits": 1}, {"hits": 2.5}, {}])
    observer = InfoObserver(last=("lives",), total=("hits",))
    observer.observe_first(environment.next(), START)
    # What a reset says is no step's.
    assert observer.get_metrics() == {"info_lives": 3, "info_hits": 0.0}
    for expected in (
        {"info_lives": 2, "info_hits": 1.0},
        {"info_lives": 2, "info_hits": 3.5},
        {"info_lives": 2, "info_hits": 3.5},
    ):
        observer.observe(environment.next(), MID, 0)
        assert observer.get_metrics() == expected


def test_each_episode_starts_anew():
    environment = WithInfo([{}, {"hits": 1, "won": True}, {}, {"hits": 2}])
    observer = InfoObserver(last=("won",), total=("hits",))
    for _ in range(2):
        observer.observe_first(environment.next(), START)
        observer.observe(environment.next(), MID, 0)
    assert observer.get_metrics() == {"info_hits": 2.0}


def test_arrays_are_added_up_without_changing_them():
    hits = np.array([1, 2])
    environment = WithInfo([{}, {"hits": hits}, {"hits": hits}])
    observer = InfoObserver(total=("hits",))
    observer.observe_first(environment.next(), START)
    observer.observe(environment.next(), MID, 0)
    observer.observe(environment.next(), MID, 0)
    np.testing.assert_array_equal(observer.get_metrics()["info_hits"], [2.0, 4.0])
    np.testing.assert_array_equal(hits, [1, 2])


def test_environments_without_info():
    assert get_info(object()) == {}
    observer = InfoObserver(last=("a",), total=("b",))
    observer.observe_first(object(), START)
    observer.observe(object(), MID, 0)
    assert observer.get_metrics() == {"info_b": 0.0}
