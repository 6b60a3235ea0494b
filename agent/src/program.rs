//! Programs of others that answer a question: run with a bound on their time and on what they print.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    process::{Child, Command},
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::one_thread::OneThread;

/// How much a program may print: certificates and tokens have a few KiB.
pub(crate) const OUTPUT_MAX: u64 = 1 << 20;
/// How much of its complaints is passed on.
const COMPLAINT_MAX: u64 = 2 << 10;

/// Why a program did not answer. What it printed is not shown: it may be secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It cannot be started.
    #[error("run {command}")]
    Start {
        command: String,
        #[source]
        source: io::Error,
    },
    /// Its file system does not answer.
    #[error("run {0}: its file system has not answered for {1:?}")]
    Unreadable(String, Duration),
    /// It says nothing.
    #[error("run {0}: it was ended after {1:?}")]
    Silent(String, Duration),
    /// It failed.
    #[error("run {command}: {status}{complaint}")]
    Failed { command: String, status: String, complaint: String },
    /// It prints without end, or no text.
    #[error("run {command}: what it prints is {why}")]
    Output { command: String, why: &'static str },
}

/// A program and how it is run, with the environment of the agent and more. Clones are started one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Starts it, which takes as long as its file system does.
    pub(crate) starter: OneThread,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    /// The beginning of its complaints.
    pub(crate) complaint: String,
}

impl Program {
    /// Runs it once with an input, and takes what it prints. It is ended after `limit`, with all that it began.
    pub(crate) async fn answer(&self, input: &str, limit: Duration) -> Result<String, ProgramError> {
        let Ended { status, output, complaint } = self.run(input, limit).await?;
        let bad = |why| ProgramError::Output { command: self.command.clone(), why };
        if output.len() as u64 > OUTPUT_MAX {
            return Err(bad("longer than 1 MiB"));
        }
        if !status.success() {
            let complaint = if complaint.is_empty() { complaint } else { format!(": {complaint}") };
            return Err(self.failed(status.to_string(), complaint));
        }
        String::from_utf8(output).map_err(|_not_text| bad("no text"))
    }

    /// As [`answer`](Self::answer), whichever way it ends.
    pub(crate) async fn run(&self, input: &str, limit: Duration) -> Result<Ended, ProgramError> {
        let deadline = Instant::now() + limit;
        let mut running = self.start(limit).await?;
        let ended = timeout_at(deadline, running.talk(input)).await;
        ended
            .map_err(|_elapsed| ProgramError::Silent(self.command.clone(), limit))?
            .map_err(|error| self.failed(error.to_string(), String::new()))
    }

    /// Runs it once without an input, and gives what it prints to either of its outputs as it comes. It is ended after `limit`, or when
    /// what is given is dropped; `held` is kept until then.
    pub(crate) async fn stream(
        &self,
        limit: Duration,
        held: impl Send + 'static,
    ) -> Result<Printed, ProgramError> {
        let deadline = Instant::now() + limit;
        let failed = |source| ProgramError::Start { command: self.command.clone(), source };
        let (reader, writer) = io::pipe().map_err(failed)?;
        let pipe = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
        let other = writer.try_clone().map_err(failed)?;
        let mut running = self.start_with([Stdio::null(), writer.into(), other.into()], limit).await?;
        let (dropped, is_dropped) = oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                _ended = running.0.wait() => {}
                () = sleep_until(deadline) => {}
                _dropped = is_dropped => {}
            }
            drop((running, held));
        });
        Ok(Printed { pipe, _dropped: dropped })
    }

    async fn start(&self, limit: Duration) -> Result<Running, ProgramError> {
        self.start_with([Stdio::piped(), Stdio::piped(), Stdio::piped()], limit).await
    }

    /// The kernel reads the program before a start returns.
    async fn start_with(&self, stdio: [Stdio; 3], limit: Duration) -> Result<Running, ProgramError> {
        let mut command = Command::new(&self.command);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let [stdin, stdout, stderr] = stdio;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        // With what it starts itself, which may hold its output open.
        command.process_group(0).kill_on_drop(true);
        let started = self.starter.run(limit, move || command.spawn().map(Running)).await;
        started
            .map_err(|_elapsed| ProgramError::Unreadable(self.command.clone(), limit))?
            .map_err(|source| ProgramError::Start { command: self.command.clone(), source })
    }

    fn failed(&self, status: String, complaint: String) -> ProgramError {
        ProgramError::Failed { command: self.command.clone(), status, complaint }
    }
}

/// What a program prints. Dropped, the program is ended.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) pipe: pipe::Receiver,
    _dropped: oneshot::Sender<()>,
}

/// A program that runs. Dropped, it is ended with all that it began.
#[derive(Debug)]
struct Running(Child);

impl Running {
    async fn talk(&mut self, input: &str) -> io::Result<Ended> {
        let Self(child) = self;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let say = async {
            if let Some(mut stdin) = stdin {
                // Who does not read it may answer all the same.
                drop(stdin.write_all(input.as_bytes()).await);
            }
        };
        let ((), output, complaint) =
            tokio::join!(say, bounded(stdout, OUTPUT_MAX), bounded(stderr, COMPLAINT_MAX));
        let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
        Ok(Ended { status: child.wait().await?, output, complaint })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // As long as it was not waited for, the number is its own.
        if let Some(group) = self.0.id().and_then(|id| i32::try_from(id).ok())
            && let Err(error) = killpg(Pid::from_raw(group), Signal::SIGKILL)
        {
            tracing::debug!(%error, "end a program");
        }
    }
}

/// Reads up to a bound and one byte, and lets the rest go by.
async fn bounded(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut read = Vec::new();
    let Some(mut stream) = stream else { return read };
    // What was read until an error is what there is.
    drop((&mut stream).take(most + 1).read_to_end(&mut read).await);
    drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
    read
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn script(text: &str) -> Program {
        let args = ["-c", text].map(str::to_owned).to_vec();
        Program {
            command: "sh".to_owned(),
            args,
            env: vec![("NAME".to_owned(), "node".to_owned())],
            ..Program::default()
        }
    }

    #[tokio::test]
    async fn it_answers_what_it_is_asked() {
        let text = "printf '%s %s' \"$NAME\" \"$(cat)\"";
        assert_eq!(script(text).answer("asked", SOON).await.unwrap(), "node asked");
        // More than a pipe holds, and nobody reads it.
        assert_eq!(script("exec 0<&-; echo x").answer(&"y".repeat(1 << 20), SOON).await.unwrap(), "x\n");
    }

    #[tokio::test]
    async fn what_it_prints_is_bounded_and_not_shown() {
        for (text, why) in [
            ("echo secret; echo 'not today' >&2; exit 3", "exit status: 3: not today"),
            ("printf '\\377'", "is no text"),
            ("kill -9 $$", "signal: 9"),
            ("head -c 1500000 /dev/zero", "longer than 1 MiB"),
            ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "exit status: 1: xxx"),
        ] {
            let error = script(text).answer("", SOON).await.unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
            assert!(error.len() < 4096, "{text}: {} bytes", error.len());
        }
        let missing = Program { command: "/nowhere/program".to_owned(), ..Program::default() };
        assert!(matches!(missing.answer("", SOON).await, Err(ProgramError::Start { .. })));
    }

    #[tokio::test]
    async fn a_start_that_hangs_holds_up_its_own_program_alone() {
        let hung = script("echo x");
        let (answer, hangs) = std::sync::mpsc::sync_channel::<()>(0);
        let start = hung.starter.run(Duration::from_millis(10), move || hangs.recv().is_ok());
        start.await.unwrap_err();
        let error = hung.answer("", Duration::from_millis(10)).await.unwrap_err();
        assert!(matches!(error, ProgramError::Unreadable(..)), "{error}");
        assert_eq!(script("echo x").answer("", SOON).await.unwrap(), "x\n");
        drop(answer);
        assert_eq!(hung.answer("", SOON).await.unwrap(), "x\n");
    }

    #[tokio::test]
    async fn what_it_prints_is_given_as_it_comes() {
        let held = std::sync::Arc::new(());
        let program = script("echo out; echo err >&2; exit 7");
        let mut printed = program.stream(SOON, std::sync::Arc::clone(&held)).await.unwrap();
        let mut text = String::new();
        printed.pipe.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "out\nerr\n");
        // One that prints without end is ended by its time, or with its reader; what is held goes then.
        let mut limit = Duration::from_millis(50);
        let mut endless = loop {
            // A busy machine may need longer until it has begun anything.
            match script("yes").stream(limit, std::sync::Arc::clone(&held)).await {
                Ok(printed) => break printed,
                Err(_slow) => limit *= 2,
            }
        };
        let mut sink = tokio::io::sink();
        let ended = tokio::io::copy(&mut endless.pipe, &mut sink);
        tokio::time::timeout(SOON, ended).await.unwrap().unwrap();
        drop(script("sleep 1000").stream(SOON * 1000, std::sync::Arc::clone(&held)).await.unwrap());
        let gone = async {
            while std::sync::Arc::strong_count(&held) > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, gone).await.unwrap();
        let missing = Program { command: "/nowhere/program".to_owned(), ..Program::default() };
        assert!(matches!(missing.stream(SOON, ()).await, Err(ProgramError::Start { .. })));
    }

    #[tokio::test]
    async fn what_never_ends_is_ended_with_all_that_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let write = format!("echo $! > {}", pid.display());
        for text in [
            format!("sleep 1000 & {write}; wait"),
            format!("sleep 1000 & {write}; exit 0"),
            format!("yes & {write}; wait"),
        ] {
            drop(fs::remove_file(&pid));
            let program = script(&text);
            let mut limit = Duration::from_millis(100);
            // A busy machine may need longer until it has begun anything.
            while !pid.exists() {
                limit *= 2;
                let error = program.answer("", limit).await.unwrap_err();
                assert!(matches!(error, ProgramError::Silent(..)), "{text}: {error}");
            }
            let began = fs::read_to_string(&pid).unwrap();
            let process = PathBuf::from(format!("/proc/{}/stat", began.trim()));
            let lives = || fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
            let ended = async {
                while lives() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(SOON, ended).await.unwrap();
        }
    }
}
