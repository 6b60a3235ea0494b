use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_core::{
    event::{Exit, NetworkStatus},
    id::{ContainerName, PodName},
    record::{ContainerRecord, ExitRecord, RunImage, TerminalRecord, TerminationRecord, Transition},
    spec::Source,
    status::ConditionKind,
    time::Mono,
};
use jiff::Timestamp;

use super::*;

fn record() -> PodRecord {
    let mono = |seconds| Mono(Duration::from_secs(seconds));
    let exit = ExitRecord {
        attempt: 3,
        exit: Exit {
            code: 137,
            started_at: Timestamp::from_second(10).ok(),
            finished_at: Timestamp::from_millisecond(20_001).unwrap(),
            oom_killed: true,
        },
        at: mono(99),
        message: "last \"words\"\n".to_owned(),
        reason: Some("ContainerStatusUnknown".to_owned()),
    };
    let container = ContainerRecord {
        attempt: 3,
        begun_at: mono(90),
        started_in: Some(2),
        image: Some(RunImage {
            name: "docker.io/library/web:1".to_owned(),
            id: "sha256:ab".to_owned(),
            stop_signal: Some("SIGQUIT".to_owned()),
        }),
        stopping: Some(TerminationRecord { began: mono(91), deadline: mono(95) }),
        exit: Some(exit),
        last_exit: None,
        backoff_ms: 20_000,
        ready: true,
    };
    let since = Timestamp::from_second(6).unwrap();
    let conditions = [
        (ConditionKind::PodReadyToStartContainers, Transition { holds: true, since }),
        (ConditionKind::Initialized, Transition { holds: true, since }),
        (ConditionKind::Ready, Transition { holds: false, since }),
        (ConditionKind::ContainersReady, Transition { holds: false, since }),
        (ConditionKind::PodScheduled, Transition { holds: true, since }),
    ];
    PodRecord {
        uid: PodUid::new("0b1c-22"),
        name: PodName { namespace: "default".to_owned(), name: "web-node".to_owned() },
        source: Source::File,
        manifest: Arc::from("{\"kind\":\"Pod\"}"),
        started_at: Timestamp::from_second(5).unwrap(),
        sandbox: 2,
        network: Some(NetworkStatus { ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()] }),
        containers: BTreeMap::from([(ContainerName::new("web"), container)]),
        conditions: BTreeMap::from(conditions),
        termination: Some(TerminationRecord { began: mono(40), deadline: mono(70) }),
        terminal: Some(TerminalRecord {
            succeeded: false,
            reason: "DeadlineExceeded".to_owned(),
            message: "too long".to_owned(),
        }),
    }
}

#[test]
fn a_record_is_read_back_as_it_was_written() {
    let run = tempfile::tempdir().unwrap();
    let store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    store.save(&record()).unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
    store.remove(&record().uid).unwrap();
    store.remove(&record().uid).unwrap();
    assert_eq!(store.load().unwrap(), []);
}

#[test]
fn a_second_agent_is_refused_and_told_about_the_first() {
    let run = tempfile::tempdir().unwrap();
    let first = Store::open(run.path()).unwrap();
    let error = Store::open(run.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    Store::open(run.path()).unwrap();
}

#[test]
fn unusable_records_are_moved_aside_and_the_others_are_read() {
    let run = tempfile::tempdir().unwrap();
    let store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    let pods = run.path().join("pods");
    fs::write(pods.join("torn.json"), "{\"version\":1,").unwrap();
    fs::write(pods.join("future.json"), wire::encode(&record(), "b").replacen("1", "2", 1)).unwrap();
    fs::copy(pods.join("0b1c-22.json"), pods.join("other.json")).unwrap();
    fs::write(pods.join("half.new"), "").unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
    for name in ["torn", "future", "other"] {
        assert!(pods.join(name).with_extension("corrupt").exists(), "{name}");
        assert!(!pods.join(name).with_extension("json").exists(), "{name}");
    }
}

#[test]
fn times_of_another_boot_have_passed() {
    let text = wire::encode(&record(), "yesterday");
    let back = wire::decode(&text, "today").unwrap();
    let web = &back.containers[&ContainerName::new("web")];
    assert!(!web.ready);
    assert_eq!(web.backoff_ms, 0);
    assert_eq!(web.exit.as_ref().map(|exit| exit.at), Some(Mono::default()));
    assert_eq!(back.termination.map(|termination| termination.deadline), Some(Mono::default()));
    assert_eq!(back.network, None);
    assert_eq!(back.manifest, record().manifest);
}

/// Invariant 7: what must survive a crash of the machine lives elsewhere, so nothing here waits for a disk.
#[test]
fn nothing_in_the_agent_asks_for_a_sync() {
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                for call in ["sync_all", "sync_data", "fsync", "fdatasync", "syncfs", "sync_file_range"] {
                    assert!(!text.contains(&format!("{call}(")), "{}: {call}", path.display());
                }
                read += 1;
            }
        }
    }
    assert!(read > 80, "only {read} files were read");
}
