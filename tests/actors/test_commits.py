"""Which committed pieces a successor needs, and when a store is cleared of replaced ones."""

import itertools
import random

from actors.commits import Commits, inherited


def current(commits, pieces):
    """The round of every client's state after a successor took the pieces in order."""
    return {i: number for ref in commits.refs for i, number in pieces[ref].items()}


def test_a_successor_gets_every_clients_last_state_and_little_else():
    rng, hosted, commits, pieces, last = random.Random(0), range(50), Commits(), {}, {}
    for number in range(300):
        trained = sorted(rng.sample(hosted, rng.choice([1, 5, 20])))
        due = commits.due(trained, hosted)
        last |= dict.fromkeys(trained, number)
        pieces[number] = {i: last[i] for i in due if i in last}
        commits.add(due, number)
        assert current(commits, pieces) == last
        assert sum(len(pieces[ref]) for ref in commits.refs) <= 2 * len(hosted)


def test_where_all_train_the_last_piece_is_all():
    commits = Commits()
    for number in range(3):
        assert commits.due((0, 1), (0, 1)) == (0, 1)
        commits.add((0, 1), number)
    assert commits.refs == [2]


def test_up_to_half_of_what_a_store_holds_may_be_replaced_states():
    """Ten clients that train one by one, until all that they began with is replaced and its piece is let go."""
    hosted, commits = range(10), Commits()
    commits.add(hosted, "all")
    for client in hosted:
        assert commits.due([client], hosted) == [client]
        commits.add([client], client)


def test_clients_that_are_divided_anew_keep_their_last_states():
    """Over and over, among more actors and fewer: what each of them would take is what its clients last had."""
    rng, pieces, last = random.Random(1), {}, {}
    actors = {range(0, 25): Commits(), range(25, 50): Commits()}
    for number in range(200):
        for hosted, commits in actors.items():
            trained = sorted(rng.sample(hosted, rng.randint(1, len(hosted))))
            due = commits.due(trained, hosted)
            last |= dict.fromkeys(trained, number)
            pieces[number, hosted] = {i: last[i] for i in due if i in last}
            commits.add(due, (number, hosted))
        if number % 10 == 9:
            cuts = sorted({0, 50, *rng.sample(range(50), rng.randint(0, 5))})
            actors = {range(a, b): inherited(actors.values(), range(a, b)) for a, b in itertools.pairwise(cuts)}
        for hosted, commits in actors.items():
            found = current(commits, pieces)
            assert {i: found[i] for i in hosted if i in found} == {i: last[i] for i in hosted if i in last}
