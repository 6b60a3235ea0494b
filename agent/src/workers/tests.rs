use std::{
    env::args_os,
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{table::PER_POD, *};

/// Far longer than anything here takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);
/// For what is waited for in vain.
const SHORT: std::time::Duration = std::time::Duration::from_secs(2);
/// For what is to hang until its test ends it.
const FOREVER: std::time::Duration = std::time::Duration::from_secs(3600);

/// This program as a worker: the name of this test is the argument of a worker, and so the filter of the harness.
#[test]
fn file_worker() {
    let Some(options) = Options::from_args(args_os()) else { return };
    let ended = serve(options, |work| match work {
        b"hang" => loop {
            thread::park();
        },
        b"die" => panic!("as asked"),
        work if work.starts_with(b"{") => crate::effects::perform_work(work),
        work => work.to_vec(),
    });
    assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::SUCCESS));
}

fn open(run: &TempDir) -> Workers {
    Workers::open(run.path()).unwrap()
}

fn job<'a>(pod: &'a str, what: &'a str, within: std::time::Duration) -> Job<'a> {
    Job { pod, what, path: "/mnt/dead", sort: Sort::Chosen, within }
}

fn records(run: &TempDir) -> Vec<PathBuf> {
    fs::read_dir(run.path().join("workers")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asks until it is so, as long as any of these tests may take.
async fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "not so in time");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Has a worker hang for a pod.
fn hang(workers: &Workers, pod: &str, what: &str) -> JoinHandle<Result<Vec<u8>, WorkError>> {
    let (workers, pod, what) = (workers.clone(), pod.to_owned(), what.to_owned());
    tokio::spawn(async move { workers.run(job(&pod, &what, FOREVER), b"hang".to_vec()).await })
}

/// Whether a worker hangs for a pod and has said so: it does a little after it was given its work.
fn is_at_work(workers: &Workers, pod: &str) -> bool {
    workers.hanging(pod).iter().any(|one| record::busy(one.process).is_some())
}

#[tokio::test]
async fn one_worker_does_what_comes_one_after_another() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    for text in ["one", "two"] {
        let answer = workers.run(job("a", "echo", LONG), text.as_bytes().to_vec()).await.unwrap();
        assert_eq!(answer, text.as_bytes());
    }
    assert_eq!(records(&run).len(), 1);
    drop(workers);
}

#[tokio::test]
async fn a_worker_that_hangs_is_killed_and_gives_back_what_it_held() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let hanging = hang(&workers, "a", "look");
    until(|| is_at_work(&workers, "a")).await;
    // Its time is over, however long it took to begin.
    tokio::time::pause();
    let failure = tokio::time::timeout(2 * FOREVER, hanging).await.expect("it is given up");
    tokio::time::resume();
    let failure = failure.unwrap().unwrap_err();
    let WorkError::Hangs { path, process, .. } = &failure else { panic!("{failure}") };
    assert_eq!(path, "/mnt/dead");
    until(|| !PathBuf::from(format!("/proc/{process}")).exists()).await;
    until(|| records(&run).is_empty()).await;
    until(|| workers.hanging("a").is_empty()).await;
    workers.run(job("a", "look", LONG), b"fine".to_vec()).await.unwrap();
}

#[tokio::test]
async fn what_hangs_is_shown_and_not_begun_again_and_a_pod_over_its_bound_waits_alone() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let names: Vec<String> = (0..PER_POD).map(|number| format!("volume {number}")).collect();
    let hanging: Vec<_> = names.iter().map(|what| hang(&workers, "stuck", what)).collect();
    until(|| workers.hanging("stuck").len() == PER_POD).await;
    let shown = workers.hanging("stuck");
    assert_eq!(shown.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), ["/mnt/dead"; PER_POD]);

    let again = workers.run(job("stuck", &names[0], LONG), b"fine".to_vec()).await.unwrap_err();
    assert!(matches!(again, WorkError::Hangs { .. }), "{again}");
    let over = workers.run(job("stuck", "one more", SHORT), b"fine".to_vec()).await.unwrap_err();
    assert!(matches!(over, WorkError::Waited { .. }), "{over}");
    let own = Job { sort: Sort::Ends, ..job("stuck", "removal", LONG) };
    workers.run(own, b"fine".to_vec()).await.unwrap();
    workers.run(job("other", &names[0], LONG), b"fine".to_vec()).await.unwrap();
    assert!(workers.hanging("other").is_empty());
    for one in hanging {
        one.abort();
    }
    until(|| workers.hanging("stuck").is_empty()).await;
}

/// As many stuck pods as there are places: what is slow gives its place to others.
#[tokio::test]
async fn stuck_pods_block_no_other() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let hanging: Vec<_> =
        (0..run::AT_ONCE).map(|pod| hang(&workers, &format!("stuck{pod}"), "look")).collect();
    until(|| (0..run::AT_ONCE).all(|pod| !workers.hanging(&format!("stuck{pod}")).is_empty())).await;
    workers.run(job("innocent", "look", LONG), b"fine".to_vec()).await.unwrap();
    hanging.iter().for_each(JoinHandle::abort);
    until(|| (0..run::AT_ONCE).all(|pod| workers.hanging(&format!("stuck{pod}")).is_empty())).await;
}

#[tokio::test]
async fn large_messages_are_made_as_there_is_room_and_small_ones_do_not_wait_for_it() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let made = Arc::new(AtomicUsize::new(0));
    let mut hanging = Vec::new();
    for pod in 0..5 {
        let (workers, made) = (workers.clone(), Arc::clone(&made));
        hanging.push(tokio::spawn(async move {
            let hang = move || {
                made.fetch_add(1, Ordering::SeqCst);
                b"hang".to_vec()
            };
            let load = Load::later(load::ROOM / 2, hang);
            workers.run(job(&format!("large{pod}"), "volume", FOREVER), load).await
        }));
    }
    until(|| made.load(Ordering::SeqCst) == 2).await;
    workers.run(job("small", "volume", LONG), b"fine".to_vec()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(made.load(Ordering::SeqCst), 2);
    // What ends gives its room back, and what is given up takes none.
    hanging.iter().for_each(JoinHandle::abort);
    let whole = Load::later(2 * load::ROOM, || b"fine".to_vec());
    assert_eq!(workers.run(job("large", "volume", LONG), whole).await.unwrap(), b"fine");
}

#[tokio::test]
async fn a_worker_that_dies_in_its_work_is_no_more_than_a_failure() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let failure = workers.run(job("a", "look", LONG), b"die".to_vec()).await.unwrap_err();
    assert!(matches!(failure, WorkError::Process { .. }), "{failure}");
    until(|| records(&run).is_empty()).await;
    workers.run(job("a", "look", LONG), b"fine".to_vec()).await.unwrap();
}

/// A worker that is stopped stands for one that the kernel does not let go of: it is told apart by its lock.
#[tokio::test]
async fn the_next_agent_ends_what_it_finds_and_sweeps_stale_records() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let hanging = hang(&workers, "a", "look");
    until(|| is_at_work(&workers, "a")).await;
    let process = workers.hanging("a")[0].process;
    fs::write(run.path().join("workers/stale"), "{").unwrap();

    let began = Instant::now();
    let next = open(&run);
    let waited = began.elapsed();
    // It was killed, and its end was waited for. One that a busy machine does not let end in time is shown until it has.
    assert!(next.hanging("a").is_empty() || waited >= earlier::END_WITHIN, "it is shown after {waited:?}");
    until(|| next.hanging("a").is_empty()).await;
    assert!(!run.path().join("workers/stale").exists());
    let process = Pid::from_raw(i32::try_from(process).unwrap());
    until(|| kill(process, None::<Signal>).is_err()).await;
    let failure = hanging.await.unwrap().unwrap_err();
    assert!(matches!(failure, WorkError::Process { .. }), "{failure}");
}

/// The room of the directory of records is all taken: no worker needs any, to begin or to be found.
#[tokio::test]
async fn a_worker_begins_and_is_found_where_there_is_no_room() {
    let run = TempDir::new().unwrap();
    let workers = open(&run);
    let records = run.path().join("workers");
    rustix::mount::mount("tmpfs", &records, "tmpfs", rustix::mount::MountFlags::empty(), c"size=4k").unwrap();
    fs::write(records.join("filler-0"), [1; 4096]).unwrap();
    fs::write(records.join("more-0"), [1]).unwrap_err();
    let echo = workers.run(job("a", "echo", LONG), b"fine".to_vec()).await;
    let hanging = hang(&workers, "a", "look");
    until(|| is_at_work(&workers, "a") || hanging.is_finished()).await;
    let found = earlier::at_something(&records);
    rustix::mount::unmount(&records, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(echo.unwrap(), b"fine");
    let shown = workers.hanging("a");
    hanging.abort();
    assert_eq!(found.unwrap().iter().map(|one| one.process).collect::<Vec<_>>(), [shown[0].process]);
    until(|| workers.hanging("a").is_empty()).await;
}

/// One that cannot be killed: here it is another's lock on the record that lives.
#[tokio::test]
async fn what_hangs_from_an_earlier_agent_is_shown_and_not_begun_again() {
    let run = TempDir::new().unwrap();
    drop(open(&run));
    let records = run.path().join("workers");
    let path = records.join("left");
    let record = record::Record::begin(&path, record::content().unwrap()).unwrap();
    let busy = record::Busy {
        pod: "a".to_owned(),
        what: "look".to_owned(),
        path: "/mnt/dead".to_owned(),
        since: jiff::Timestamp::UNIX_EPOCH,
    };
    let process = std::process::id();
    let earlier = earlier::Earlier { path: record::path_of(&path, process), process, busy };

    let next = Workers::after(&records, vec![earlier]);
    assert_eq!(next.hanging("a").len(), 1);
    let failure = next.run(job("a", "look", LONG), b"fine".to_vec()).await.unwrap_err();
    let words = failure.to_string();
    assert!(
        words.starts_with("look: still waiting since 1970-01-01T00:00:00Z for /mnt/dead (process "),
        "{words}"
    );
    next.run(job("a", "other", LONG), b"fine".to_vec()).await.unwrap();
    next.run(job("b", "look", LONG), b"fine".to_vec()).await.unwrap();
    drop(record);
    assert!(next.hanging("a").is_empty());
    next.run(job("a", "look", LONG), b"fine".to_vec()).await.unwrap();
}
