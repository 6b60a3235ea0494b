//! An agent that begins again while a part of a source cannot be read.

use std::collections::BTreeSet;

use berth_core::id::PodUid;

use crate::{pods, run::Run};

/// What becomes of pod `web` of an earlier run of the agent.
#[derive(Debug, PartialEq)]
enum Fate {
    /// The same container runs.
    GoesOn,
    /// Nothing of it is left.
    Gone,
}

fn running(run: &Run, name: &str) -> bool {
    run.world.running(&PodUid::new(format!("uid-{name}")), "main").is_some()
}

/// Two pods run, then the agent is killed, `change` happens, and it begins again.
fn begun_again(change: impl FnOnce(&mut Run)) -> Run {
    let mut run = Run::new();
    run.settle();
    for name in ["web", "other"] {
        run.want(pods::pod(name, &["main"]));
    }
    run.settle();
    assert!(running(&run, "web") && running(&run, "other"));
    change(&mut run);
    run.restart(None);
    run.settle();
    run
}

fn unread(run: &mut Run, names: &[&str]) {
    run.unread = names.iter().map(|name| (*name).to_owned()).collect();
}

#[test]
fn what_may_be_in_what_cannot_be_read_goes_on() {
    type Change = fn(&mut Run);
    let rows: [(&str, Change, Fate); 5] = [
        ("nothing changed", |_| {}, Fate::GoesOn),
        ("it was taken out", |run| run.take_out("web"), Fate::Gone),
        ("its file is broken", |run| unread(run, &["web"]), Fate::GoesOn),
        ("nothing can be listed", |run| unread(run, &["web", "other"]), Fate::GoesOn),
        (
            "it was taken out while another file is broken: whose it was cannot be told",
            |run| {
                run.take_out("web");
                unread(run, &["other"]);
            },
            Fate::GoesOn,
        ),
    ];
    for (case, change, fate) in rows {
        let mut run = begun_again(change);
        let now = if running(&run, "web") { Fate::GoesOn } else { Fate::Gone };
        assert_eq!(now, fate, "{case}");
        assert!(running(&run, "other"), "{case}: the other one");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{case}");
        // Everything can be read again: what is wanted stays, what is not goes.
        let wanted = run.wanted();
        run.unread = BTreeSet::new();
        run.send_desired();
        run.settle();
        for name in ["web", "other"] {
            assert_eq!(running(&run, name), wanted.contains(name), "{case}: {name} once all is read");
        }
    }
}

/// What was read of the runtime before a pod went tells nothing of what comes back under its UID.
#[test]
fn what_was_read_since_is_removed_and_begins_anew_while_something_else_cannot_be_read() {
    type Change = fn(&mut Run);
    let rows: [(&str, Change, Change); 3] = [
        ("nothing else happens", |_| {}, |_| {}),
        (
            "containerd has lost the records of sandboxes",
            |run| run.world.sandboxes.values_mut().for_each(|one| one.is_recorded = false),
            |_| {},
        ),
        ("the runtime is read before it goes, and heard of later", |_| {}, Run::read_runtime),
    ];
    for (case, before, meanwhile) in rows {
        let mut run = begun_again(|run| {
            before(run);
            unread(run, &["other"]);
        });
        meanwhile(&mut run);
        run.unwant("web");
        run.settle();
        assert!(!running(&run, "web"), "{case}: its file is gone, and was read before");
        assert!(running(&run, "other"), "{case}");
        run.hear_runtime();
        run.want(pods::pod("web", &["main"]));
        run.settle();
        assert!(running(&run, "web"), "{case}: it begins anew");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{case}");
    }
}

/// A manifest that was changed meanwhile gives a pod with the same name and another UID.
#[test]
fn a_pod_with_its_name_takes_the_place_of_one_that_may_be_wanted() {
    let mut run = begun_again(|run| {
        run.take_out("web");
        unread(run, &["other"]);
    });
    let mut next = pods::pod("web", &["main"]);
    next.uid = PodUid::new("uid-next");
    run.want(next);
    run.settle();
    assert!(!running(&run, "web"));
    assert!(running(&run, "next"));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its manifest is the only one that still tells of it.
#[test]
fn what_has_no_record_is_nobodys_only_once_all_is_read() {
    let mut run = begun_again(|run| {
        run.world.records.remove(&PodUid::new("uid-web"));
        unread(run, &["web"]);
    });
    assert!(running(&run, "web"));
    run.unread = BTreeSet::new();
    run.send_desired();
    run.settle();
    assert!(running(&run, "web"), "it is adopted");
    run.unwant("web");
    run.settle();
    assert!(!running(&run, "web"));
}
