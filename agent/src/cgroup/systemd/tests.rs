use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use berth_core::{
    cgroup::{CgroupValues, slice},
    config::CgroupVersion,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use zbus::object_server::SignalEmitter;
use zvariant::OwnedValue;

use super::*;

const POD: &str = "kubepods-burstable-pod1.slice";
const BASICS: &str = "MemoryAccounting=true CPUAccounting=true IOAccounting=true TasksAccounting=true DefaultDependencies=false";

/// Far above what a call takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// For what never comes.
const SHORT: Duration = Duration::from_millis(50);

/// What the fake does with a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    /// Answers, and its jobs end well.
    Well,
    /// Never answers.
    Hanging,
    /// Answers, and its jobs never end.
    Idle,
    /// Answers, and its jobs end with this result.
    Ending(&'static str),
}

#[derive(Debug)]
struct State {
    mood: Mood,
    units: BTreeMap<String, String>,
    calls: Vec<String>,
    jobs: u32,
}

/// `org.freedesktop.systemd1.Manager` on a private socket.
#[derive(Debug, Clone)]
struct Fake(Arc<Mutex<State>>);

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refusal {
    #[zbus(error)]
    ZBus(zbus::Error),
    UnitExists(String),
    NoSuchUnit(String),
}

impl Fake {
    fn new(mood: Mood) -> Self {
        let state = State { mood, units: BTreeMap::new(), calls: Vec::new(), jobs: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    async fn noted(&self, call: String) {
        let mood = self.with(|state| {
            state.calls.push(call);
            state.mood
        });
        if mood == Mood::Hanging {
            std::future::pending::<()>().await;
        }
    }

    /// Ends a job of somebody else's, then the one that is asked for, both before the answer.
    async fn job(&self, unit: &str, emitter: &SignalEmitter<'_>) -> Result<OwnedObjectPath, Refusal> {
        let (job, mood) = self.with(|state| {
            state.jobs += 2;
            (state.jobs, state.mood)
        });
        let path = |job: u32| OwnedObjectPath::try_from(format!("{PATH}/job/{job}")).unwrap();
        Self::job_removed(emitter, job - 1, path(job - 1), "other.scope", "failed").await?;
        let result = match mood {
            Mood::Well | Mood::Hanging => Some("done"),
            Mood::Ending(result) => Some(result),
            Mood::Idle => None,
        };
        if let Some(result) = result {
            Self::job_removed(emitter, job, path(job), unit, result).await?;
        }
        Ok(path(job))
    }

    /// Serves whoever connects, until dropped.
    fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let fake = self.clone();
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let fake = fake.clone();
                connections.spawn(async move {
                    let connection =
                        zbus::connection::Builder::async_io_unix_stream(stream.into_std().unwrap())
                            .p2p()
                            .server(zbus::Guid::generate())
                            .unwrap()
                            .serve_at(PATH, fake)
                            .unwrap()
                            .build()
                            .await
                            .unwrap();
                    connection.closed().await;
                });
            }
        })
    }
}

fn shown(properties: &[(String, OwnedValue)]) -> String {
    let property = |(name, value): &(String, OwnedValue)| match &**value {
        Value::Bool(value) => format!("{name}={value}"),
        Value::U64(value) => format!("{name}={value}"),
        Value::Array(bits) => {
            let bytes: Vec<u8> = bits.iter().map(|byte| byte.try_into().unwrap()).collect();
            format!("{name}={bytes:?}")
        }
        other => panic!("{name}: {other:?}"),
    };
    properties.iter().map(property).collect::<Vec<_>>().join(" ")
}

type Others = Vec<(String, Vec<(String, OwnedValue)>)>;

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Fake {
    async fn start_transient_unit(
        &self,
        name: String,
        mode: String,
        properties: Vec<(String, OwnedValue)>,
        others: Others,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refusal> {
        assert!(others.is_empty());
        let properties = shown(&properties);
        self.noted(format!("StartTransientUnit {name} {mode} {properties}")).await;
        if self.with(|state| state.units.contains_key(&name)) {
            return Err(Refusal::UnitExists(format!("Unit {name} was already loaded")));
        }
        self.with(|state| state.units.insert(name.clone(), properties));
        self.job(&name, &emitter).await
    }

    async fn start_unit(
        &self,
        name: String,
        mode: String,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refusal> {
        self.noted(format!("StartUnit {name} {mode}")).await;
        self.job(&name, &emitter).await
    }

    async fn stop_unit(
        &self,
        name: String,
        mode: String,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refusal> {
        self.noted(format!("StopUnit {name} {mode}")).await;
        self.with(|state| state.units.remove(&name))
            .ok_or_else(|| Refusal::NoSuchUnit(format!("Unit {name} not loaded.")))?;
        self.job(&name, &emitter).await
    }

    async fn set_unit_properties(
        &self,
        name: String,
        runtime: bool,
        properties: Vec<(String, OwnedValue)>,
    ) -> Result<(), Refusal> {
        self.noted(format!("SetUnitProperties {name} {runtime} {}", shown(&properties))).await;
        Ok(())
    }

    async fn reset_failed_unit(&self, name: String) -> Result<(), Refusal> {
        self.noted(format!("ResetFailedUnit {name}")).await;
        Err(Refusal::NoSuchUnit(format!("Unit {name} not loaded.")))
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: OwnedObjectPath,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

/// A directory with the socket, what is at the other end, and what the agent has of it.
struct Bench {
    _directory: TempDir,
    fake: Fake,
    systemd: Systemd,
}

impl Bench {
    fn new(mood: Mood) -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("private");
        let fake = Fake::new(mood);
        drop(fake.serve(&socket));
        let systemd = Systemd { socket, answer_within: SOON, job_within: SOON };
        Self { _directory: directory, fake, systemd }
    }

    async fn ensure(&self) -> Result<(), SystemdError> {
        self.systemd.connect().await?.ensure(&pod()).await
    }

    async fn stop(&self) -> Result<(), SystemdError> {
        self.systemd.connect().await?.stop(POD).await
    }
}

fn pod() -> Slice {
    let values =
        CgroupValues { cpu_shares: Some(1024), memory_bytes_max: Some(1 << 20), ..CgroupValues::default() };
    slice(&format!("/kubepods.slice/kubepods-burstable.slice/{POD}"), &values, CgroupVersion::V2)
}

#[tokio::test]
async fn a_new_slice_is_one_call_with_all_its_properties() {
    let bench = Bench::new(Mood::Well);
    bench.ensure().await.unwrap();
    let call = format!("StartTransientUnit {POD} replace {BASICS} CPUWeight=100 MemoryMax=1048576");
    assert_eq!(bench.fake.calls(), [call]);
}

#[tokio::test]
async fn a_slice_that_is_there_is_started_and_set() {
    let bench = Bench::new(Mood::Well);
    bench.ensure().await.unwrap();
    bench.fake.calls();
    bench.ensure().await.unwrap();
    let calls = bench.fake.calls();
    assert!(calls[0].starts_with("StartTransientUnit "), "{calls:?}");
    let rest = [
        format!("StartUnit {POD} replace"),
        format!("SetUnitProperties {POD} true CPUWeight=100 MemoryMax=1048576"),
    ];
    assert_eq!(calls[1..], rest);
}

#[tokio::test]
async fn values_are_changed_in_one_call() {
    let bench = Bench::new(Mood::Well);
    let mut session = bench.systemd.connect().await.unwrap();
    session.set(&pod()).await.unwrap();
    session.set(&Slice { name: POD.to_owned(), bounds: Vec::new() }).await.unwrap();
    assert_eq!(bench.fake.calls(), [format!("SetUnitProperties {POD} true CPUWeight=100 MemoryMax=1048576")]);
}

/// Levels as they are made: the node's, then a pod's.
fn levels() -> [(&'static str, Slice); 3] {
    let named = |path: &'static str, values: CgroupValues| (path, slice(path, &values, CgroupVersion::V2));
    [
        named(
            "/kubepods.slice",
            CgroupValues {
                cpu_shares: Some(2048),
                cpus: Some("0-8".into()),
                memory_bytes_min: Some(3 << 20),
                memory_bytes_low: Some(1 << 20),
                memory_bytes_max: Some(1 << 30),
                pids_max: Some(32_000),
                ..CgroupValues::default()
            },
        ),
        named(
            "/kubepods.slice/kubepods-burstable.slice",
            CgroupValues { cpu_shares: Some(2), memory_bytes_low: Some(0), ..CgroupValues::default() },
        ),
        named(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
            CgroupValues {
                cpu_shares: Some(1024),
                memory_bytes_min: Some(0),
                memory_bytes_low: Some(1 << 20),
                memory_bytes_max: Some(2 << 20),
                ..CgroupValues::default()
            },
        ),
    ]
}

const KUBEPODS: &str = "CPUWeight=174 AllowedCPUs=[255, 1] MemoryMin=3145728 MemoryLow=1048576 MemoryMax=1073741824 TasksMax=32000";
const BURSTABLE: &str = "CPUWeight=1 MemoryLow=0";
const BOUNDED: &str = "CPUWeight=100 MemoryMin=0 MemoryLow=1048576 MemoryMax=2097152";

#[tokio::test]
async fn levels_are_asked_for_from_the_top_each_in_one_call() {
    let bench = Bench::new(Mood::Well);
    let directory = TempDir::new().unwrap();
    let tree = Tree::at(directory.path());
    let levels = levels();
    let all: Vec<_> = levels.iter().map(|(path, slice)| (*path, slice)).collect();
    bench.systemd.ensure_all(&tree, &all).await.unwrap();
    let start = |name: &str, bounds: &str| format!("StartTransientUnit {name} replace {BASICS} {bounds}");
    let made = [
        start("kubepods.slice", KUBEPODS),
        start("kubepods-burstable.slice", BURSTABLE),
        start(POD, BOUNDED),
    ];
    assert_eq!(bench.fake.calls(), made);

    // Those that are there get all their values in one call, and no job.
    let set = |name: &str, bounds: &str| format!("SetUnitProperties {name} true {bounds}");
    std::fs::create_dir_all(directory.path().join("kubepods.slice/kubepods-burstable.slice")).unwrap();
    bench.fake.with(|state| state.units.remove(POD));
    bench.systemd.ensure_all(&tree, &all).await.unwrap();
    let changed =
        [set("kubepods.slice", KUBEPODS), set("kubepods-burstable.slice", BURSTABLE), start(POD, BOUNDED)];
    assert_eq!(bench.fake.calls(), changed);
}

#[tokio::test]
async fn a_level_that_fails_is_the_last_that_is_asked_for() {
    let bench = Bench::new(Mood::Ending("failed"));
    let directory = TempDir::new().unwrap();
    let levels = levels();
    let all: Vec<_> = levels.iter().map(|(path, slice)| (*path, slice)).collect();
    let error = bench.systemd.ensure_all(&Tree::at(directory.path()), &all).await.unwrap_err();
    assert!(matches!(error, SystemdError::Job { .. }), "{error:?}");
    let calls = bench.fake.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls.iter().all(|call| call.contains(" kubepods.slice")), "{calls:?}");
}

#[tokio::test]
async fn a_stopped_slice_is_gone_and_may_be_stopped_again() {
    let bench = Bench::new(Mood::Well);
    bench.ensure().await.unwrap();
    bench.fake.calls();
    for _ in 0..2 {
        bench.stop().await.unwrap();
        assert_eq!(bench.fake.calls(), [format!("StopUnit {POD} replace")]);
    }
    bench.fake.with(|state| assert!(state.units.is_empty()));
}

#[tokio::test]
async fn a_hanging_systemd_is_given_up() {
    let mut bench = Bench::new(Mood::Hanging);
    bench.systemd.answer_within = SHORT;
    let began = Instant::now();
    for result in [bench.ensure().await, bench.stop().await] {
        assert!(matches!(result, Err(SystemdError::Late { .. })), "{result:?}");
    }
    assert!(began.elapsed() < SOON);
    // What it was doing then is found.
    bench.systemd.answer_within = SOON;
    bench.fake.with(|state| state.mood = Mood::Well);
    bench.ensure().await.unwrap();
}

#[tokio::test]
async fn a_socket_that_nobody_serves_is_given_up() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("private");
    let _listener = UnixListener::bind(&socket).unwrap();
    let systemd = Systemd { socket, answer_within: SHORT, job_within: SHORT };
    assert!(matches!(systemd.connect().await, Err(SystemdError::Late { call: "connect", .. })));
}

#[tokio::test]
async fn a_job_that_does_not_end_is_given_up() {
    let mut bench = Bench::new(Mood::Idle);
    bench.systemd.job_within = SHORT;
    let result = bench.ensure().await;
    assert!(matches!(result, Err(SystemdError::Late { call: "StartTransientUnit", .. })), "{result:?}");
}

#[tokio::test]
async fn a_job_that_fails_is_told_and_forgotten() {
    for ending in ["failed", "canceled", "timeout", "dependency"] {
        let bench = Bench::new(Mood::Ending(ending));
        let message = bench.ensure().await.unwrap_err().to_string();
        let expected = format!(
            "call StartTransientUnit of systemd for {POD}: its job ended as `{ending}`, see `systemctl status {POD}`"
        );
        assert_eq!(message, expected);
        assert_eq!(bench.fake.calls()[1..], [format!("ResetFailedUnit {POD}")]);
    }
}

#[tokio::test]
async fn systemd_away_is_an_error_until_it_is_back() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("private");
    let systemd = Systemd { socket: socket.clone(), answer_within: SOON, job_within: SOON };
    let fake = Fake::new(Mood::Idle);

    let error = systemd.connect().await.unwrap_err();
    assert!(matches!(error, SystemdError::Connect(..)), "{error:?}");
    assert!(error.to_string().contains("must be booted with systemd"), "{error}");

    // It goes while a job runs: the work ends with an error at once, not at its deadline.
    let serving = fake.serve(&socket);
    let (mut session, pod) = (systemd.connect().await.unwrap(), pod());
    let going = async {
        while fake.with(|state| state.calls.is_empty()) {
            tokio::task::yield_now().await;
        }
        serving.abort();
    };
    let (result, ()) = timeout(SOON, async { tokio::join!(session.ensure(&pod), going) }).await.unwrap();
    assert!(matches!(result, Err(SystemdError::Call { .. })), "{result:?}");

    std::fs::remove_file(&socket).unwrap();
    fake.with(|state| state.mood = Mood::Well);
    let _serving = fake.serve(&socket);
    systemd.connect().await.unwrap().ensure(&pod).await.unwrap();
}

/// Output of a program that has to succeed.
fn run(program: &str, args: &[&str]) -> String {
    let output = std::process::Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `scripts/vm test --systemd agent`
#[tokio::test]
#[ignore = "makes slices on the machine, which has to run systemd on cgroup v2"]
async fn systemd_of_this_machine() {
    let name = "berthtest-pod1.slice";
    let dir = Path::new("/sys/fs/cgroup/berthtest.slice").join(name);
    let level = |shares, quota, memory| {
        let values = CgroupValues {
            cpu_shares: Some(shares),
            cpu_quota_us: quota,
            cpu_period_us: Some(100_000),
            memory_bytes_min: Some(1 << 20),
            memory_bytes_low: Some(memory / 2),
            memory_bytes_max: Some(memory),
            pids_max: Some(77),
            ..CgroupValues::default()
        };
        slice(&format!("/berthtest.slice/{name}"), &values, CgroupVersion::V2)
    };
    let files = || {
        ["cpu.weight", "cpu.max", "memory.min", "memory.low", "memory.max", "pids.max"]
            .map(|file| std::fs::read_to_string(dir.join(file)).unwrap().trim().to_owned())
    };
    // systemd writes files after it has answered.
    let wait = |expected: [&'static str; 6]| async move {
        let began = Instant::now();
        while files() != expected {
            assert!(began.elapsed() < SOON, "{:?} is not {expected:?}", files());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let systemd = Systemd::default();

    let mut session = systemd.connect().await.unwrap();
    session.ensure(&level(1024, Some(1500), 64 << 20)).await.unwrap();
    wait(["100", "2000 100000", "1048576", "33554432", "67108864", "77"]).await;
    assert!(run("systemctl", &["show", name, "--property=ActiveState,Transient"]).contains("Transient=yes"));

    session.set(&level(2000, None, 32 << 20)).await.unwrap();
    wait(["170", "max 100000", "1048576", "16777216", "33554432", "77"]).await;
    run("systemctl", &["daemon-reload"]);
    run("systemctl", &["daemon-reexec"]);
    wait(["170", "max 100000", "1048576", "16777216", "33554432", "77"]).await;

    // The re-execution has ended the connection; another one finds the slice.
    let mut session = systemd.connect().await.unwrap();
    session.ensure(&level(1024, Some(1500), 64 << 20)).await.unwrap();
    wait(["100", "2000 100000", "1048576", "33554432", "67108864", "77"]).await;

    run("systemctl", &["stop", "dbus.socket", "dbus.service"]);
    session.set(&level(2000, None, 32 << 20)).await.unwrap();
    wait(["170", "max 100000", "1048576", "16777216", "33554432", "77"]).await;
    for _ in 0..2 {
        session.stop(name).await.unwrap();
        assert!(!dir.exists());
    }
    session.stop("berthtest.slice").await.unwrap();
    for left in
        ["/run/systemd/transient/berthtest-pod1.slice", "/run/systemd/transient/berthtest-pod1.slice.d"]
    {
        assert!(!Path::new(left).exists(), "{left}");
    }
}
