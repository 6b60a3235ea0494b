//! One plugin and everything it can do wrong.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use berth_cni::{CniError, Gc, PluginFailure, Verb};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fixture::{Fixture, LONG, attachment, deadline, list, parse, soon, wait_until, with_causes};

#[tokio::test]
async fn failures_are_told_apart() {
    let add = "CNI ADD of network net failed in plugin a: ";
    for (behaviour, expected) in [
        (json!({"exit": 1, "stdout": ""}), r#"it ended with exit status: 1 and printed """#),
        (
            json!({"exit": 2, "stdout": "", "stderr": "why"}),
            r#"it ended with exit status: 2 and printed "why""#,
        ),
        (
            json!({"exit": 1, "stdout": "garbage", "stderr": "x"}),
            r#"it ended with exit status: 1 and printed "garbage""#,
        ),
        (json!({"exit": 1, "stdout": r#"{"code":4,"msg":"bad env"}"#}), "bad env (code 4)"),
        (json!({"abort": true}), r#"it ended with signal: 6 (SIGABRT) and printed """#),
        (
            json!({"stdout": "garbage"}),
            "it succeeded, but its answer cannot be used: the result is not a JSON object: expected value at line 1 column 1",
        ),
        (json!({"flood": 2_000_000}), "it printed more than 1048576 bytes; it was killed"),
    ] {
        let fixture = Fixture::new(&["a"]);
        fixture.control("a", &json!({"ADD": behaviour}));
        let error =
            fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap_err();
        assert_eq!(with_causes(&error), format!("{add}{expected}"), "{behaviour}");
    }
}

#[tokio::test]
async fn harmless_oddities_are_tolerated() {
    for behaviour in [
        json!({"stderr_flood": 1_000_000}),
        json!({"stdin": "ignored", "stdout": "{}"}),
        json!({"flood": 1_000_000}),
        json!({"stdout": "null"}),
    ] {
        let fixture = Fixture::new(&["a"]);
        fixture.control("a", &json!({"ADD": behaviour}));
        let padding = "x".repeat(300_000);
        let list =
            parse(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "a", "pad": padding}]}));
        let added = fixture.runtime.add(&list, &attachment("id1"), deadline()).await;
        assert!(added.is_ok(), "{behaviour}: {added:?}");
    }
}

/// Every verb of a hanging plugin ends at the deadline.
#[tokio::test]
async fn every_verb_times_out() {
    let fixture = Fixture::new(&["a"]);
    let list = list("1.1.0", &["a"]);
    let attachment = attachment("id1");
    fixture.runtime.add(&list, &attachment, deadline()).await.unwrap();
    let hang = json!({"wait_for": "/does/not/exist"});
    let verbs = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    let all: serde_json::Map<_, _> = verbs.into_iter().map(|verb| (verb.to_owned(), hang.clone())).collect();
    fixture.control("a", &Value::Object(all));
    let runtime = &fixture.runtime;
    let plugin = list.plugins()[0].kind.clone();
    let other = crate::fixture::attachment("id2");
    let errors = [
        runtime.add(&list, &other, soon()).await.unwrap_err(),
        runtime.del(&attachment, None, soon()).await.unwrap_err(),
        runtime.check(&attachment, &list, soon()).await.unwrap_err(),
        match runtime.gc(&list, &BTreeSet::new(), soon()).await.unwrap() {
            Gc::Asked { mut failures } => failures.remove(0),
            other => panic!("{other:?}"),
        },
        runtime.status(&list, soon()).await.unwrap_err(),
        runtime.version(&plugin, soon()).await.unwrap_err(),
        runtime.validate(&list, soon()).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_timeout(), "{error:?}");
    }
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_with_its_children() {
    let fixture = Fixture::new(&["a"]);
    fixture.control("a", &json!({"ADD": {"leave_child": true, "wait_for": "/does/not/exist"}}));
    let pid_file = fixture.bin().join("child.pid");
    let (list, attachment) = (list("1.0.0", &["a"]), attachment("id1"));
    // More and more time, until the plugin had enough of it to start its child.
    let mut within = Duration::from_millis(200);
    let (error, child) = loop {
        let error = fixture.runtime.add(&list, &attachment, Instant::now() + within).await.unwrap_err();
        let child = fs::read_to_string(&pid_file).unwrap_or_default();
        if !child.is_empty() {
            break (error, child);
        }
        within *= 2;
        assert!(within < LONG, "the plugin never started its child: {error:?}");
    };
    assert!(
        matches!(error, CniError::Plugin { verb: Verb::Add, source: PluginFailure::TimedOut { .. }, .. }),
        "{error:?}"
    );
    ended(&child).await;
    assert_eq!(fixture.done().len(), 0);
}

/// An ADD that does not end before `until` is there, and the process that its plugin has started.
async fn hanging_add(fixture: &Fixture, until: &Path) -> (JoinHandle<()>, String) {
    fixture.control("a", &json!({"ADD": {"leave_child": true, "wait_for": until, "stderr": "late"}}));
    let runtime = fixture.runtime.clone();
    let add = tokio::spawn(async move {
        drop(runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await);
    });
    let pid_file = fixture.bin().join("child.pid");
    let written = || fs::read_to_string(&pid_file).is_ok_and(|pid| !pid.is_empty());
    wait_until("the plugin's child", written).await;
    (add, fs::read_to_string(&pid_file).unwrap())
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_plugin_behind() {
    let fixture = Fixture::new(&["a"]);
    let (add, child) = hanging_add(&fixture, Path::new("/does/not/exist")).await;
    add.abort();
    ended(&child).await;
}

/// What it is at, it ends by itself, and what it says to who is gone does not end it.
#[tokio::test]
async fn a_plugin_of_a_process_that_is_about_to_end_goes_on() {
    let fixture = Fixture::new(&["a"]);
    let gate = fixture.bin().join("gate");
    let (add, child) = hanging_add(&fixture, &gate).await;
    fixture.runtime.let_plugins_go_on();
    add.abort();
    let is_cancelled = add.await.is_err_and(|error| error.is_cancelled());
    let was_done = fixture.done().len();
    fs::write(gate, "").unwrap();
    let child = nix::unistd::Pid::from_raw(child.parse().unwrap());
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_until("the plugin's end", || fixture.done().len() == 1).await;
    assert_eq!((is_cancelled, was_done), (true, 0));
}

/// Nobody reads on, and it would wait for ever.
#[tokio::test]
async fn what_prints_too_much_does_not_go_on() {
    let fixture = Fixture::new(&["a"]);
    fixture.control("a", &json!({"ADD": {"leave_child": true, "flood": 3_000_000}}));
    fixture.runtime.let_plugins_go_on();
    let error =
        fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap_err();
    assert!(
        matches!(error, CniError::Plugin { source: PluginFailure::TooMuchOutput { .. }, .. }),
        "{error:?}"
    );
    ended(&fs::read_to_string(fixture.bin().join("child.pid")).unwrap()).await;
    assert_eq!(fixture.done().len(), 0);
}

/// A process that a plugin leaves behind on purpose holds the pipes; it must not hold up the answer.
#[tokio::test]
async fn a_daemon_left_behind_does_not_hold_up_the_answer() {
    let fixture = Fixture::new(&["a"]);
    fixture.control("a", &json!({"ADD": {"leave_child": true, "stdout": r#"{"dns":{"domain":"d"}}"#}}));
    let result = fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    assert_eq!(result.dns.domain, "d");
    let pid = fs::read_to_string(fixture.bin().join("child.pid")).unwrap();
    assert!(fs::exists(format!("/proc/{pid}")).unwrap(), "what ended well is left alone");
    let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_program_that_is_being_written_is_tried_again() {
    let fixture = Fixture::new(&[]);
    let program = fixture.bin().join("a");
    fs::copy(env!("CARGO_BIN_EXE_berth-cni-fake-plugin"), &program).unwrap();
    let writer = OpenOptions::new().append(true).open(&program).unwrap();
    let list = list("1.0.0", &["a"]);
    // While the writer holds it, the time is spent on trying again.
    let error = fixture.runtime.add(&list, &attachment("id1"), soon()).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let begun = fixture.own().join("net@id2@eth0");
    let release = async {
        wait_until("the record of the second ADD", || begun.exists()).await;
        drop(writer);
    };
    let second = attachment("id2");
    let (added, ()) = tokio::join!(fixture.runtime.add(&list, &second, deadline()), release);
    added.unwrap();
}

#[tokio::test]
async fn a_program_that_cannot_run_is_named() {
    let fixture = Fixture::new(&[]);
    fs::write(fixture.bin().join("a"), "not executable").unwrap();
    let error =
        fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap_err();
    assert!(
        with_causes(&error).contains(&format!("cannot run {}", fixture.bin().join("a").display())),
        "{}",
        with_causes(&error)
    );
}

#[tokio::test]
async fn plugins_inherit_no_descriptor() {
    // Without close-on-exec, as a service manager passes sockets.
    let inherited = fs::File::open("/etc/hostname").unwrap();
    let inherited = nix::unistd::dup(&inherited).unwrap();
    berth_cni::close_inherited_on_exec().unwrap();
    let fixture = Fixture::new(&["a"]);
    fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    assert_eq!(fixture.calls()[0]["descriptors"], json!(["0", "1", "2"]));
    drop(inherited);
}

/// Waits until a process is gone, or only its exit is left to be collected.
async fn ended(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    wait_until("the end of the plugin's child", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
}
