use std::{collections::BTreeMap, os::unix::fs::MetadataExt, sync::Arc, time::Duration};

use berth_core::{
    id::{ContainerId, ContainerName, PodName, SandboxId, VolumeName},
    observation::Exit,
    record::{
        Actuated, Afterwards, ContainerRecord, EndedBy, ExitRecord, Goal, Hooked, Perhaps, PostStart, Probed,
        Resizing, RestartBackoff, RunImage, TerminalRecord, TerminationRecord, Transition, VolumeImage,
    },
    spec::{CpuMemory, Resize, Source, Unallocated},
    status::{ConditionKind, NetworkStatus, RunUser},
    time::Mono,
    users::HostIds,
};
use jiff::Timestamp;

use super::*;

fn container() -> ContainerRecord {
    let mono = |seconds| Mono(Duration::from_secs(seconds));
    let (started_at, finished_at) =
        (Timestamp::from_second(10).ok(), Timestamp::from_millisecond(20_001).unwrap());
    let ended = Exit { code: 137, started_at, finished_at, oom_killed: true };
    let exit = ExitRecord {
        id: ContainerId::from_known("of-another-formula"),
        attempt: 3,
        exit: ended,
        at: mono(99),
        message: "last \"words\"\n".to_owned(),
        reason: Some("ContainerStatusUnknown".to_owned()),
        post_start: Some("it failed".to_owned()),
    };
    ContainerRecord {
        id: ContainerId::from_known("of-another-formula"),
        attempt: 3,
        begun_at: mono(90),
        anew: true,
        started_in: Some(2),
        last_in: Some(1),
        has_run: true,
        image: Some(RunImage {
            name: "docker.io/library/web:1".to_owned(),
            id: "sha256:ab".to_owned(),
            stop_signal: Some("SIGQUIT".to_owned()),
            user: Some(RunUser { uid: 1000, gid: 2000, supplemental_groups: vec![2000, 3000] }),
        }),
        stopping: Some(TerminationRecord { began: mono(91), deadline: mono(95) }),
        actuated: Some(Actuated {
            has: CpuMemory { cpu_request: 1, cpu_limit: 2, memory_request: 3, memory_limit: 4 },
            perhaps: Some(Perhaps {
                least: CpuMemory { cpu_request: 5, ..CpuMemory::default() },
                most: CpuMemory { cpu_request: 6, ..CpuMemory::default() },
            }),
        }),
        probed: Probed { started: true, ready: false, afterwards: Afterwards::Never },
        hooked: Hooked {
            pre_stop: true,
            signalled: Some(mono(92)),
            post_start: PostStart::Failed("it failed".to_owned()),
        },
        exit: Some(exit),
        last_exit: None,
        backoff: RestartBackoff { delay_ms: 20_000, since: mono(90) },
        other_backoffs: [("another".to_owned(), RestartBackoff { delay_ms: 40_000, since: mono(80) })].into(),
    }
}

/// One after the other, by a match that misses none.
fn all_conditions() -> Vec<ConditionKind> {
    use ConditionKind::{
        AllContainersRestarting, ContainersReady, DisruptionTarget, Initialized, PodReadyToStartContainers,
        PodResizeInProgress, PodResizePending, PodScheduled, Ready,
    };
    let next = |kind: &ConditionKind| match kind {
        PodResizePending => Some(PodResizeInProgress),
        PodResizeInProgress => Some(DisruptionTarget),
        DisruptionTarget => Some(PodReadyToStartContainers),
        PodReadyToStartContainers => Some(Initialized),
        Initialized => Some(Ready),
        Ready => Some(ContainersReady),
        ContainersReady => Some(PodScheduled),
        PodScheduled => Some(AllContainersRestarting),
        AllContainersRestarting => None,
    };
    std::iter::successors(Some(PodResizePending), next).collect()
}

fn record() -> PodRecord {
    let mono = |seconds| Mono(Duration::from_secs(seconds));
    let since = Timestamp::from_second(6).unwrap();
    let conditions = all_conditions();
    let conditions = conditions.into_iter().map(|kind| {
        let holds = !matches!(kind, ConditionKind::Ready | ConditionKind::ContainersReady);
        (kind, Transition { holds, since })
    });
    PodRecord {
        uid: PodUid::new("0b1c-22"),
        name: PodName { namespace: "default".to_owned(), name: "web-node".to_owned() },
        source: Source::File,
        manifest: Arc::from("{\"kind\":\"Pod\"}"),
        resize: Some(Resize {
            allocated: "{\"kind\":\"Pod\",\"a\":1}".into(),
            generation: Some(3),
            unallocated: Some(Unallocated { is_infeasible: true, message: "never".to_owned() }),
        }),
        resizing: Some(Resizing {
            generation: Some(2),
            error: Some("no luck".to_owned()),
            whole: Some(CpuMemory { cpu_request: 1, cpu_limit: 2, memory_request: 3, memory_limit: 4 }),
            memory: Some(5),
        }),
        started_at: Timestamp::from_second(5).unwrap(),
        goal: Goal::Removed,
        sandbox: 2,
        sandbox_id: SandboxId::from_known("sandbox-of-another-formula"),
        earlier_sandbox: Some(SandboxId::from_known("the-one-before")),
        ids: Some(HostIds { first: 131_072, count: 65_536 }),
        level: Some("s0:c1,c2".to_owned()),
        recursive_read_only: true,
        network: Some(NetworkStatus { ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()] }),
        volume_images: BTreeMap::from([(
            VolumeName::new("data"),
            VolumeImage { name: "docker.io/library/data:1".to_owned(), chain_id: "sha256:01".to_owned() },
        )]),
        containers: BTreeMap::from([(ContainerName::new("web"), container())]),
        conditions: conditions.collect(),
        replacing: Some(TerminationRecord { began: mono(30), deadline: mono(60) }),
        restarting: Some(TerminationRecord { began: mono(35), deadline: mono(37) }),
        termination: Some(TerminationRecord { began: mono(40), deadline: mono(70) }),
        terminal: Some(TerminalRecord {
            succeeded: false,
            reason: "DeadlineExceeded".to_owned(),
            message: "too long".to_owned(),
            by: EndedBy::Node("for others".to_owned()),
        }),
    }
}

#[test]
fn a_record_is_read_back_as_it_was_written() {
    let run = tempfile::tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    store.save(&record()).unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
    store.remove(&record().uid).unwrap();
    store.remove(&record().uid).unwrap();
    assert_eq!(store.load().unwrap(), []);
    assert_eq!(names(run.path()), Vec::<String>::new());
}

/// Files of records.
fn names(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("pods")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The record as it grows in the start of a pod of one container: begun, prepared, wired, asked to start, running.
fn states_of_a_start() -> Vec<PodRecord> {
    let mut begun = record();
    begun.manifest = Arc::from(format!("{{\"kind\":\"Pod\",\"env\":{:?}}}", "x".repeat(4096)));
    (begun.termination, begun.terminal, begun.network) = (None, None, None);
    let full = std::mem::take(&mut begun.containers);
    let conditions = std::mem::take(&mut begun.conditions);
    let mut states = vec![begun.clone()];
    let mut step = |change: &dyn Fn(&mut PodRecord)| {
        change(&mut begun);
        states.push(begun.clone());
    };
    step(&|record| record.conditions.clone_from(&conditions));
    step(&|record| record.network = self::record().network);
    step(&|record| {
        record.containers.clone_from(&full);
        for run in record.containers.values_mut() {
            (run.exit, run.stopping) = (None, None);
        }
    });
    step(&|record| {
        for condition in record.conditions.values_mut() {
            condition.holds = true;
        }
    });
    states
}

/// Bytes that a save wrote: those of files that are others than before.
fn written(store: &mut Store, record: &PodRecord, run: &Path) -> u64 {
    let files = || -> BTreeMap<String, (u64, u64)> {
        let of = |name: String| {
            let data = fs::metadata(run.join("pods").join(&name)).unwrap();
            (name, (data.ino(), data.len()))
        };
        names(run).into_iter().map(of).collect()
    };
    // What is removed in the meantime keeps its number.
    let held: Vec<File> =
        names(run).into_iter().map(|name| File::open(run.join("pods").join(name)).unwrap()).collect();
    let before = files();
    store.save(record).unwrap();
    let after = files();
    drop(held);
    after.iter().filter(|(name, file)| before.get(*name) != Some(file)).map(|(_, (_, bytes))| bytes).sum()
}

#[test]
fn a_manifest_is_written_once_and_again_when_it_changes() {
    let run = tempfile::tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    let states = states_of_a_start();
    let bytes: Vec<u64> = states.iter().map(|state| written(&mut store, state, run.path())).collect();
    let manifest = u64::try_from(states[0].manifest.len()).unwrap();
    let all: u64 = bytes.iter().sum();
    // Version 1 wrote the manifest, escaped, with every state.
    let of_version_1 = all + manifest * 4;
    println!("{bytes:?}: {all} bytes, as version 1 more than {of_version_1}");
    assert!(bytes[0] > manifest && bytes[1..].iter().all(|bytes| *bytes < 2500), "{bytes:?}");
    assert!(all * 2 < of_version_1, "{all} of {of_version_1}");

    let mut changed = states[4].clone();
    changed.manifest = Arc::from("{}");
    written(&mut store, &changed, run.path());
    assert_eq!(store.load().unwrap(), [changed.clone()]);
    // One that was read back is not written again.
    assert!(written(&mut store, &changed, run.path()) > 2);
    assert_eq!(fs::read_to_string(run.path().join("pods/0b1c-22.manifest")).unwrap(), "{}");
}

/// As the agent of 7a5d009 wrote it.
const VERSION_1_RECORD: &str = include_str!("tests/version_1.json");

#[test]
fn a_record_of_version_1_is_taken_over_with_the_ids_it_meant() {
    let run = tempfile::tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    let old = run.path().join("pods/0b1c-22.json");
    fs::write(&old, VERSION_1_RECORD).unwrap();
    let [read] = store.load().unwrap().try_into().unwrap();
    assert_eq!(names(run.path()), ["0b1c-22.manifest", "0b1c-22.state"]);
    assert_eq!(store.load().unwrap(), std::slice::from_ref(&read));
    assert_eq!(&*read.manifest, "{\"kind\":\"Pod\"}");
    assert_eq!(read.goal, Goal::Wanted);
    // The formula of version 1, whatever becomes of it later.
    assert_eq!(read.sandbox_id.as_str(), "1e9517158bc22a6811dd3a6fb0b041f474463a373f3c193ebc55fe187f62897c");
    assert_eq!(
        read.earlier_sandbox.as_ref().map(SandboxId::as_str),
        Some("89d71787c0d240e01c86b523ce96eb36fc9b1fa8305c41f593b5b9642a2f7a39")
    );
    let web = &read.containers[&ContainerName::new("web")];
    assert_eq!(web.id.as_str(), "809938400bbaadaebadb6a40036e96ece81f36267bac854e6524f72ad4f456b8");
    assert_eq!(
        web.last_exit.as_ref().map(|exit| exit.id.as_str()),
        Some("4953d3aa5fdc775c94a61a6925475013ae456d5d58fe9c01e68b563ee664bad8")
    );
    assert_eq!(web.attempt, 3);
    // Its agent asked nobody, and showed it as started and ready.
    assert_eq!(web.probed, Probed { started: true, ready: true, afterwards: Afterwards::Again });
    // It ran no hooks either.
    assert_eq!(web.hooked, Hooked { post_start: PostStart::Over, ..Hooked::default() });

    // One that stayed: an agent of version 1 ran after the one that wrote the state.
    fs::write(&old, VERSION_1_RECORD.replace("\"sandbox\":2", "\"sandbox\":7")).unwrap();
    for _load in 0..2 {
        let [one] = store.load().unwrap().try_into().unwrap();
        let sandbox_id = SandboxId::of(&read.uid, 7);
        let earlier_sandbox = Some(SandboxId::of(&read.uid, 6));
        assert_eq!(one, PodRecord { sandbox: 7, sandbox_id, earlier_sandbox, ..read.clone() });
    }
    fs::write(&old, VERSION_1_RECORD).unwrap();
    store.remove(&read.uid).unwrap();
    assert_eq!(names(run.path()), Vec::<String>::new());
}

/// An agent was killed between the two files of the record that it wrote anew.
#[test]
fn a_record_of_version_1_that_was_half_taken_over_is_whole() {
    let run = tempfile::tempdir().unwrap();
    let pods = run.path().join("pods");
    let mut store = Store::open(run.path()).unwrap();
    fs::write(pods.join("0b1c-22.json"), VERSION_1_RECORD).unwrap();
    fs::write(pods.join("0b1c-22.manifest"), "{\"kind\":\"Pod\"}").unwrap();
    let taken = store.load().unwrap();
    assert_eq!(names(run.path()), ["0b1c-22.manifest", "0b1c-22.state"]);
    assert_eq!(store.load().unwrap(), taken);
    assert_eq!(taken.len(), 1);
}

#[test]
fn a_record_of_a_later_version_is_left_alone_and_no_agent_starts() {
    for (name, text) in [
        ("0b1c-22.state", "{\"version\":3,\"all\":\"different\"}"),
        ("0b1c-22.json", "{\"version\":4294967295}"),
    ] {
        let run = tempfile::tempdir().unwrap();
        let mut store = Store::open(run.path()).unwrap();
        fs::write(run.path().join("pods").join(name), text).unwrap();
        let said = store.load().unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("made by a later agent"), "{said}");
        assert_eq!(names(run.path()), [name]);
    }
}

/// A file that cannot be written whole leaves the old one, and nothing half written.
#[test]
fn a_write_without_room_keeps_the_old_record_and_says_where_to_make_some() {
    let run = tempfile::tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    let mut larger = record();
    larger.started_at = Timestamp::from_second(7).unwrap();
    // The kernel says the same for a device that is full.
    let half = run.path().join("pods/0b1c-22.state.new");
    std::os::unix::fs::symlink("/dev/full", &half).unwrap();
    let said = with_causes(&store.save(&larger).unwrap_err());
    assert!(said.contains(&format!("free space in {}", run.path().display())), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(names(run.path()), ["0b1c-22.manifest", "0b1c-22.state"]);
    assert_eq!(store.load().unwrap(), [record()]);
    store.save(&larger).unwrap();
    assert_eq!(store.load().unwrap(), [larger]);
}

/// An agent that was killed between the two files, or had no room for one of them. The pod was admitted with 500 thousandths of a core, by
/// its manifest or by what its state says.
#[test]
fn half_a_record_gives_a_pod_no_other_resources() {
    let asks = |milli: u32| -> Arc<str> { format!("{{\"cpu\":{milli}}}").into() };
    let version = |(milli, generation, is_resizing): (u32, Option<i64>, bool)| {
        let resize =
            generation.map(|it| Resize { allocated: asks(500), generation: Some(it), unallocated: None });
        let resizing =
            is_resizing.then_some(Resizing { generation: Some(3), error: None, whole: None, memory: None });
        PodRecord { manifest: asks(milli), resize, resizing, ..record() }
    };
    let (admitted, resized, allocated) = ((500, None, false), (800, Some(2), false), (900, None, true));
    for (before, after, not_written, there) in [
        (Some(admitted), resized, STATE, Some(admitted)),
        (Some(admitted), resized, MANIFEST, Some((500, Some(2), false))),
        (Some(resized), (900, Some(3), false), STATE, Some((900, Some(2), false))),
        (Some(resized), (900, Some(3), false), MANIFEST, Some(resized)),
        (Some(resized), admitted, STATE, Some((500, Some(2), false))),
        (Some(resized), admitted, MANIFEST, Some(resized)),
        (Some(admitted), allocated, STATE, Some(admitted)),
        (Some(admitted), allocated, MANIFEST, Some((500, None, true))),
        (Some(resized), allocated, STATE, Some((900, Some(2), false))),
        (Some(resized), allocated, MANIFEST, Some(resized)),
        (None, resized, STATE, None),
        (None, resized, MANIFEST, None),
    ] {
        let run = tempfile::tempdir().unwrap();
        let mut store = Store::open(run.path()).unwrap();
        before.into_iter().for_each(|before| store.save(&version(before)).unwrap());
        let half = run.path().join(format!("pods/0b1c-22.{not_written}.new"));
        std::os::unix::fs::symlink("/dev/full", half).unwrap();
        store.save(&version(after)).unwrap_err();
        drop(store);
        let mut store = Store::open(run.path()).unwrap();
        let found = store.load().unwrap();
        assert_eq!(found, Vec::from_iter(there.map(version)), "{before:?} {after:?} {not_written}");
        store.save(&version(after)).unwrap();
        assert_eq!(store.load().unwrap(), [version(after)]);
    }
}

#[test]
fn what_was_half_written_is_cleared_away() {
    let run = tempfile::tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    let pods = run.path().join("pods");
    fs::write(pods.join("0b1c-22.state.new"), "{\"ver").unwrap();
    fs::write(pods.join("begun.manifest"), "{}").unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
    assert_eq!(names(run.path()), ["0b1c-22.manifest", "0b1c-22.state"]);
}

/// A removal that fails half way leaves a whole record, or none: never an older one in its place.
#[test]
fn the_files_of_a_record_go_in_the_order_in_which_what_is_left_means_the_least() {
    let all = ["0b1c-22.json", "0b1c-22.manifest", "0b1c-22.state"];
    for (stuck, left) in [
        ("0b1c-22.json", &all[..]),
        ("0b1c-22.state", &["0b1c-22.manifest", "0b1c-22.state"]),
        ("0b1c-22.manifest", &["0b1c-22.manifest"]),
    ] {
        let run = tempfile::tempdir().unwrap();
        let mut store = Store::open(run.path()).unwrap();
        for name in all {
            let path = run.path().join("pods").join(name);
            // A directory is not removed as a file is.
            if name == stuck { fs::create_dir(path).unwrap() } else { fs::write(path, "").unwrap() }
        }
        store.remove(&record().uid).unwrap_err();
        assert_eq!(names(run.path()), left, "{stuck} could not be removed");
    }
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
    let mut store = Store::open(run.path()).unwrap();
    store.save(&record()).unwrap();
    let pods = run.path().join("pods");
    fs::write(pods.join("torn.state"), "{\"version\":2,").unwrap();
    fs::write(pods.join("torn.manifest"), "{}").unwrap();
    fs::write(pods.join("older.json"), "{\"version\":0}").unwrap();
    fs::write(pods.join("alone.state"), wire::encode(&record(), "b")).unwrap();
    fs::copy(pods.join("0b1c-22.state"), pods.join("other.state")).unwrap();
    fs::write(pods.join("other.manifest"), "{}").unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
    assert_eq!(
        names(run.path()),
        [
            "0b1c-22.manifest",
            "0b1c-22.state",
            "alone.state.corrupt",
            "older.json.corrupt",
            "other.manifest.corrupt",
            "other.state.corrupt",
            "torn.manifest.corrupt",
            "torn.state.corrupt"
        ]
    );
    store.set_aside(&record().uid, "its manifest cannot be used");
    assert_eq!(store.load().unwrap(), []);
    store.save(&record()).unwrap();
    assert_eq!(store.load().unwrap(), [record()]);
}

#[test]
fn how_a_pod_has_ended_is_kept_until_it_is_dropped() {
    let (run, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(run.path()).unwrap();
    let ended = store.ended(root.path());
    assert_eq!(ended.load().unwrap(), []);
    ended.drop(&record().uid).unwrap();
    ended.keep(&record()).unwrap();
    let state = root.path().join("berth/ended/0b1c-22.state");
    let number = fs::metadata(&state).unwrap().ino();
    ended.keep(&record()).unwrap();
    assert_eq!(fs::metadata(&state).unwrap().ino(), number, "written again for nothing");
    assert_eq!(ended.load().unwrap(), [record()]);

    // After a reboot only what is not counted from it is left.
    let later = EndedPods::at(root.path(), "another boot");
    let [read] = later.load().unwrap().try_into().unwrap();
    assert_eq!((read.terminal, read.network), (record().terminal, None));

    fs::write(&state, "{\"version\":9}").unwrap();
    assert!(ended.load().unwrap_err().to_string().contains("made by a later agent"));
    fs::write(&state, "torn").unwrap();
    assert_eq!(ended.load().unwrap(), []);
    let mut unended = record();
    unended.terminal = None;
    ended.keep(&unended).unwrap();
    assert_eq!(ended.load().unwrap(), []);
    ended.keep(&record()).unwrap();
    ended.drop(&record().uid).unwrap();
    assert!(!state.exists() && !state.with_extension(MANIFEST).exists());
}

#[test]
fn times_of_another_boot_have_passed() {
    let text = wire::encode(&record(), "yesterday");
    let back = wire::decode(&text, Some("{}"), "today").unwrap();
    let passed = TerminationRecord { began: Mono::default(), deadline: Mono::default() };
    let mut expected = PodRecord {
        manifest: Arc::from("{}"),
        network: None,
        replacing: None,
        restarting: None,
        termination: Some(passed),
        ..record()
    };
    for web in expected.containers.values_mut() {
        (web.begun_at, web.stopping) = (Mono::default(), Some(passed));
        web.hooked.signalled = Some(Mono::default());
        (web.backoff, web.other_backoffs) = (RestartBackoff::default(), BTreeMap::new());
        web.exit = web.exit.take().map(|exit| ExitRecord { at: Mono::default(), ..exit });
    }
    assert_eq!(back, expected);
}

/// What can be a manifest can be read back.
#[test]
fn the_largest_manifest_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut large = record();
    large.manifest = "x".repeat(BYTES_MAX).into();
    let mut store = Store::open(dir.path()).unwrap();
    store.save(&large).unwrap();
    drop(store);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!(store.load().unwrap(), [large]);
}

/// Descriptors or memory of the agent, which say nothing of the record.
#[test]
fn what_the_agent_lacks_is_no_fault_of_a_record() {
    for (errno, lacks) in [
        (nix::Error::EMFILE, true),
        (nix::Error::ENFILE, true),
        (nix::Error::ENOMEM, true),
        (nix::Error::EIO, false),
        (nix::Error::ENOENT, false),
        (nix::Error::EISDIR, false),
    ] {
        assert_eq!(is_a_lack(&io::Error::from(errno)), lacks, "{errno}");
    }
    assert!(!is_a_lack(&io::ErrorKind::InvalidData.into()));
}
