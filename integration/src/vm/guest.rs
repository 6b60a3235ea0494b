//! Inside the machine: makes the surroundings of a node and runs the job's command in them.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, ensure};
use nix::libc::O_NOCTTY;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, sync};

use super::feature::is_guest;
use super::job::{self, EXCHANGE, HOST, Init, Job, LOGS, SHARE, STARTED, STATUS, Stdio, below};

/// Mounts that systemd would make: type, directory, options. Those of the kernel's own come first.
const MOUNTS: [(&str, &str, &str); 8] = [
    ("sysfs", "/sys", ""),
    ("securityfs", "/sys/kernel/security", ""),
    ("bpf", "/sys/fs/bpf", "mode=700"),
    ("cgroup2", CGROUP, "nsdelegate,memory_recursiveprot"),
    ("devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=000"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
];
/// Modules that a node has before anybody asks for them: for their devices, or because containerd looks for a file system
/// in the kernel's list (erofs) and does without it otherwise.
const MODULES: [&str; 3] = ["loop", "fuse", "erofs"];
const CGROUP: &str = "/sys/fs/cgroup";

/// The ports of the job's outputs.
const OUT: &str = "/dev/ttyS0";
const ERR: &str = "/dev/ttyS1";

/// Exit code of a job whose command could not be started, as of a shell.
const NOT_STARTED: u8 = 127;

/// As process 1, in place of systemd.
pub(super) fn init() -> Result<ExitCode> {
    let ended = surroundings().and_then(|()| run());
    finish(ended)
}

/// As a unit of systemd.
pub(super) fn unit() -> Result<ExitCode> {
    finish(run())
}

/// Leaves the result and ends the machine, from which nothing returns.
#[expect(clippy::print_stderr, reason = "goes to the console, which the host keeps")]
fn finish(ended: Result<u8>) -> Result<ExitCode> {
    let code = ended.unwrap_or_else(|failure| {
        eprintln!("guest: {failure:#}");
        NOT_STARTED
    });
    fs::write(exchange(STATUS), format!("{code}\n"))?;
    sync();
    reboot(RebootMode::RB_POWER_OFF).context("end the machine")?;
    Ok(ExitCode::SUCCESS)
}

/// In a guest, a file or directory that host and guest share.
pub(super) fn exchange(name: &str) -> PathBuf {
    Path::new(SHARE).join(EXCHANGE).join(name)
}

/// In a guest, the directory of what is worth keeping from a failure.
#[must_use]
pub fn logs() -> Option<PathBuf> {
    is_guest().then(|| exchange(LOGS))
}

fn surroundings() -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    for (kind, dir, options) in MOUNTS {
        // A first file system leaves some of them.
        if table.lines().any(|line| line.split(' ').nth(4) == Some(dir)) {
            continue;
        }
        fs::create_dir_all(dir)?;
        mount(Some(kind), dir, Some(kind), MsFlags::empty(), Some(options))
            .with_context(|| format!("mount {dir}"))?;
    }
    let all = fs::read_to_string(Path::new(CGROUP).join("cgroup.controllers"))?;
    let enabled: Vec<String> = all.split_whitespace().map(|name| format!("+{name}")).collect();
    fs::write(Path::new(CGROUP).join("cgroup.subtree_control"), enabled.join(" "))
        .context("enable controllers")?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("start ip")?;
    ensure!(up.success(), "ip link set lo up ended with {up}");
    Ok(())
}

/// Runs the job's command and gives its exit code.
fn run() -> Result<u8> {
    let job: Job = serde_json::from_slice(&fs::read(exchange(job::JOB))?).context("read the job")?;
    for path in &job.shares {
        fs::create_dir_all(path)?;
        let from = below(&Path::new(SHARE).join(HOST), path);
        mount(Some(&from), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| format!("bind {}", path.display()))?;
    }
    let _held = hold(&job.held);
    let loaded = Command::new("modprobe").arg("--all").args(MODULES).status().context("start modprobe")?;
    ensure!(loaded.success(), "modprobe of {MODULES:?} ended with {loaded}");
    let ports = match job.stdio {
        Stdio::Outputs => Some([raw_port(OUT)?, raw_port(ERR)?]),
        Stdio::Terminal => None,
    };
    let mut command = command(&job, ports.as_ref())?;
    let child = command.spawn().with_context(|| format!("start {:?}", job.command))?;
    fs::write(exchange(STARTED), "")?;
    let code = wait_for(Pid::from_raw(i32::try_from(child.id())?))?;
    for port in ports.iter().flatten() {
        tcdrain(port)?;
    }
    if code != 0 && job.init == Init::Systemd {
        keep_journal()?;
    }
    Ok(code)
}

/// Opens the files in directories that are there.
fn hold(dirs: &[PathBuf]) -> Vec<File> {
    let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    files.filter_map(|path| File::open(path).ok()).collect()
}

fn command(job: &Job, ports: Option<&[File; 2]>) -> Result<Command> {
    let (program, arguments) = job.command.split_first().context("the job has no command")?;
    let mut command = match ports {
        Some([out, err]) => {
            let mut command = Command::new(program);
            command.stdin(process::Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
            command
        }
        None => {
            let port = File::options().read(true).write(true).custom_flags(O_NOCTTY).open(OUT)?;
            let mut command = Command::new("setsid");
            command.args(["--ctty", "--wait", program]);
            command.stdin(port.try_clone()?).stdout(port.try_clone()?).stderr(port);
            command
        }
    };
    command.args(arguments).env_clear().envs(&job.environment).current_dir(&job.dir);
    Ok(command)
}

/// Opens a port through which bytes go as they are.
fn raw_port(path: &str) -> Result<File> {
    let open = || -> Result<File> {
        let port = File::options().read(true).write(true).custom_flags(O_NOCTTY).open(path)?;
        let mut settings = tcgetattr(&port)?;
        cfmakeraw(&mut settings);
        tcsetattr(&port, SetArg::TCSANOW, &settings)?;
        Ok(port)
    };
    open().with_context(|| format!("open {path}"))
}

/// Reaps whatever ends until the command does; gives its exit code, 128 + n for signal n.
fn wait_for(command: Pid) -> Result<u8> {
    loop {
        match wait()? {
            WaitStatus::Exited(pid, code) if pid == command => return Ok(u8::try_from(code)?),
            WaitStatus::Signaled(pid, signal, _) if pid == command => {
                return Ok(u8::try_from(128 + signal as i32)?);
            }
            _ => {}
        }
    }
}

fn keep_journal() -> Result<()> {
    let logs = exchange(LOGS).join("journal.log");
    let status: ExitStatus = Command::new("journalctl")
        .args(["--boot", "--no-pager", "--output=short-monotonic"])
        .stdout(File::create(logs)?)
        .status()
        .context("start journalctl")?;
    ensure!(status.success(), "journalctl ended with {status} (signal {:?})", status.signal());
    Ok(())
}
