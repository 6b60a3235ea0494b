//! Resources that nobody allocated, and cgroups that are too small.

use super::*;
use crate::world::Given;

fn given(quota: u64, memory: u64) -> Given {
    Given { quota: Some(quota), memory: Some(memory) }
}

pub(super) fn given_something_else(run: &mut Run) {
    begin(run, &["main"]);
    lie(run, |oracle, _| oracle.given(&uid(), given(100, 2), Some(given(100, 1))));
}

pub(super) fn given_what_is_asked_for(run: &mut Run) {
    begin(run, &["main"]);
    lie(run, |oracle, _| oracle.given(&uid(), given(200, 1), Some(given(100, 1))));
}

pub(super) fn shrunk_before_its_containers(run: &mut Run) {
    begin(run, &["main", "other"]);
    lie(run, |oracle, _| oracle.level(&uid(), given(200, 3), &[given(100, 2), given(100, 2)]));
}

pub(super) fn left_at_rest(run: &mut Run) {
    begin(run, &["main"]);
    lie(run, |oracle, _| oracle.given_at_rest(&uid(), given(100, 1), given(100, 2), false));
}

pub(super) fn told_at_rest(run: &mut Run) {
    begin(run, &["main"]);
    lie(run, |oracle, _| oracle.given_at_rest(&uid(), given(100, 1), given(100, 1), true));
}
