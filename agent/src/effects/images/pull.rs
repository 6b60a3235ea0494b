//! Pulls, by containerd's transfer service: it fetches, verifies and unpacks; what it tells of its progress is heard in `progress`.
//!
//! Afterwards the image has the records that CRI would make: the name, the digest and the image id, marked as managed,
//! so that garbage collectors and a return to CRI find what they expect.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use berth_core::{
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::{ImageRef, OpId},
    image::{
        ImageInfo, WantedImage,
        access::PullSecret,
        name::{ImageName, shown_of},
        platform::{self, runs_on},
    },
};
use containerd_client::{
    services::v1::{CreateImageRequest, Image, TransferOptions, TransferRequest, UpdateImageRequest},
    to_any,
    tonic::Code,
    types::{
        Descriptor, Platform,
        transfer::{ImageStore, OciRegistry, RegistryResolver, UnpackConfiguration},
    },
};
use prost_types::FieldMask;
use tokio::time::sleep;

use super::{
    auth,
    credentials::{self, Found, Tracked},
    documents::{ImageError, go_arch},
    failure::config,
    host::Host,
    hosts,
    inspect::{self, Located, target},
    progress,
    pulled::{self, Before},
};
use crate::{
    causes::with_causes,
    config::GoDuration,
    effects::{kinds::PULL, pulls::Came},
    one_thread::Unanswered,
    runtime::{CallError, Cause, labels},
};

/// Longest pull: what is written of it is changed before its effect ends with it.
const LONGEST: Duration = PULL.saturating_sub(Duration::from_mins(5));

/// How long containerd takes to hear that a call has been given up.
const CUT_OFF_WITHIN: Duration = Duration::from_secs(2);

/// How often a containerd that does not answer is asked what a pull has brought, and how often at most.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const LOOKS: usize = 120;

/// Fetches and unpacks an image.
pub(in crate::effects) async fn pull(
    host: &Arc<Host>,
    op: OpId,
    wanted: &WantedImage,
) -> Result<Outcome, Failure> {
    let name = inspect::parse(&wanted.image)?;
    let reference = name.to_string();
    tracing::info!(image = reference, "pulling");
    let before = pulled::before(host, &wanted.image, &name).await?;
    pulled::begin(host, &reference, &before).await?;
    let repository = name.repository();
    let given_up = host.unwanted.of(op);
    let fetched = tokio::select! {
        fetched = fetch(host, wanted, &reference, &repository) => Ok(fetched),
        () = given_up.cancelled() => Err("no pod waits for it any more".to_owned()),
        () = sleep(LONGEST) => Err(format!("it has taken {}", GoDuration(LONGEST))),
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(why) => {
            sleep(CUT_OFF_WITHIN).await;
            ended_somehow(host, &wanted.image, reference.clone(), before);
            return Err(failure(format!("pull image {reference:?}: given up: {why}")));
        }
    };
    let info = match fetched {
        Ok(used) => keep(host, &name, &reference, &wanted.image, used).await,
        Err(failure) if may_have_come(&failure) => {
            ended_somehow(host, &wanted.image, reference, before);
            return Err(failure);
        }
        Err(failure) => {
            pulled::ended(host, &reference, Came::Nothing).await;
            return Err(failure);
        }
    };
    let came = if info.is_ok() { Came::Recorded } else { Came::Perhaps };
    pulled::ended(host, &reference, came).await;
    Ok(Outcome::Image(Some(Arc::new(info?))))
}

/// A pull has ended of which containerd has not said what it brought. As soon as it can be asked its image is looked for: containerd stores
/// one last, and not once the call is gone.
fn ended_somehow(host: &Arc<Host>, image: &ImageRef, reference: String, before: Before) {
    let (host, image) = (Arc::clone(host), image.clone());
    tokio::spawn(async move {
        let found = look(&host, &reference).await;
        let is_recorded = match &found {
            Some(Some(found)) => pulled::is_recorded(&host, &image, &found.info.id).await,
            _ => false,
        };
        let target = found.as_ref().map(|found| found.as_ref().map(|found| target(&found.record)));
        pulled::ended(&host, &reference, came_to(target, before.target.as_deref(), is_recorded)).await;
    });
}

/// What a name points at, as soon as containerd can be asked; `None` where that cannot be told.
async fn look(host: &Arc<Host>, reference: &str) -> Option<Option<Located>> {
    for _ in 0..LOOKS {
        match inspect::locate(host, reference).await {
            Err(ImageError::Call(_)) => sleep(LOOK_AGAIN).await,
            found => return found.ok(),
        }
    }
    None
}

/// What a pull brought, by what its name points at now, where that can be told, and whether another pull has recorded that meanwhile.
fn came_to(found: Option<Option<&str>>, before: Option<&str>, is_recorded: bool) -> Came {
    match found {
        Some(None) => Came::Nothing,
        Some(target) if target == before || is_recorded => Came::Nothing,
        Some(_) | None => Came::Perhaps,
    }
}

/// Whether an image may be there though its transfer failed: nobody has said what became of that.
fn may_have_come(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Unknown | FailureKind::RuntimeDown)
}

/// Looks at what came, and keeps with what.
async fn keep(
    host: &Arc<Host>,
    name: &ImageName,
    reference: &str,
    image: &ImageRef,
    used: Option<PullSecret>,
) -> Result<ImageInfo, Failure> {
    host.failpoint.reach("pull.transferred");
    let found = inspect::locate(host, reference).await?.ok_or_else(|| {
        failure(format!("pull image {reference:?}: containerd says it did, and does not have it"))
    })?;
    // Containerd only warns when it is not configured to unpack for this snapshotter.
    if !found.is_unpacked {
        let snapshotter = &host.settings().snapshotter;
        return Err(failure(format!(
            "pull image {reference:?}: containerd fetched but did not unpack it for snapshotter {snapshotter:?}; add it to \
             unpack_config of the transfer plugin"
        )));
    }
    let digest = name_it(host, name, &found).await?;
    pulled::record(host, image, &found.info.id, used).await?;
    host.failpoint.reach("pull.named");
    tracing::info!(image = reference, id = found.info.id, "pulled");
    let names = found.names.iter().map(String::as_str).chain([digest.as_str()]);
    let (tag, repo_digest) = shown_of(names);
    Ok(ImageInfo { tag, repo_digest, ..found.info })
}

/// Fetches with each credential until one works (`pullImage` of `pkg/kubelet/kuberuntime/kuberuntime_image.go`); which one.
async fn fetch(
    host: &Host,
    wanted: &WantedImage,
    reference: &str,
    repository: &str,
) -> Result<Option<PullSecret>, Failure> {
    let Found { credentials, missing, malformed } = credentials::find(host, wanted, repository).await;
    if !missing.is_empty() {
        host.objects.tell(Event::PullSecretsMissing { image: wanted.clone(), names: missing }).await;
    }
    if let Some(malformed) = malformed {
        return Err(config(malformed.to_string()));
    }
    let dirs = &host.settings().registry_dirs;
    let silent = |error: Unanswered| {
        failure(format!("pull image {reference:?}: look for the registry's settings in {dirs:?}: {error}"))
    };
    let dir = hosts::dir_of(&host.registries, dirs, reference).await.map_err(silent)?;
    let named = if credentials.is_empty() {
        Vec::new()
    } else {
        hosts::named(&host.registries, &dir, reference).await.map_err(silent)?
    };
    let mut failed = Vec::new();
    for Tracked { credential, source } in credentials {
        let (stream, _answered) = auth::open(&host.containerd, repository, named.clone(), credential).await?;
        match transfer(host, reference, &dir, stream).await {
            Ok(()) => return Ok(source),
            // The next one's failure must not hide it.
            Err(failure) if may_have_come(&failure) => return Err(failure),
            Err(failure) => failed.push(failure),
        }
    }
    match together(failed) {
        Some(failure) => Err(failure),
        None => transfer(host, reference, &dir, String::new()).await.map(|()| None),
    }
}

/// What each of several credentials failed with, said once (`aggregate` of `k8s.io/apimachinery/pkg/util/errors`).
fn together(failed: Vec<Failure>) -> Option<Failure> {
    let kind = failed.last()?.kind;
    let mut texts: Vec<String> = Vec::new();
    for failure in failed {
        if !texts.contains(&failure.message) {
            texts.push(failure.message);
        }
    }
    let text = texts.join(", ");
    Some(Failure::new(kind, if texts.len() == 1 { text } else { format!("[{text}]") }))
}

fn failure(message: String) -> Failure {
    Failure { kind: FailureKind::ImagePull, message }
}

async fn transfer(host: &Host, reference: &str, dir: &Path, auth_stream: String) -> Result<(), Failure> {
    let platforms: Vec<Platform> = runs_on(&go_arch()).into_iter().map(wire).collect();
    let registry = OciRegistry {
        reference: reference.to_owned(),
        resolver: Some(RegistryResolver {
            auth_stream,
            host_dir: dir.display().to_string(),
            ..RegistryResolver::default()
        }),
    };
    let store = ImageStore {
        name: reference.to_owned(),
        labels: managed(),
        unpacks: vec![UnpackConfiguration {
            platform: platforms.first().cloned(),
            snapshotter: host.settings().snapshotter.clone(),
        }],
        platforms,
        // The best alone, and where none fits the pull fails.
        manifest_limit: 1,
        ..ImageStore::default()
    };
    let patience = host.config.pull_progress_timeout;
    let (stream, told) = progress::open(&host.containerd, reference).await?;
    let request = TransferRequest {
        source: Some(to_any(&registry)),
        destination: Some(to_any(&store)),
        options: Some(TransferOptions { progress_stream: stream }),
    };
    let mut client = host.containerd.transfers();
    // Dropping the call is how it is cancelled.
    let result = tokio::select! {
        answer = client.transfer(request) => answer.map(drop).map_err(|status| {
            CallError::new("pull image", reference, Cause::from(status))
        }),
        silence = progress::stalled(host, told, patience) => return Err(failure(format!(
            "pull image {reference:?}: nothing of it has come for {} (imagePullProgressTimeout is {})",
            GoDuration(Duration::from_secs(silence.as_secs())), GoDuration(patience)
        ))),
    };
    result.map_err(|error| not_pulled(reference, error))
}

/// What a transfer failed with. Where containerd has answered nothing came, whatever its code: it stores an image last, and tells with the code of
/// a call that took too long also of a registry that does not answer.
fn not_pulled(reference: &str, error: CallError) -> Failure {
    match (error.kind(), error.cause()) {
        (_, Cause::Refused { code, message }) => failure(refused(reference, *code, message)),
        (FailureKind::RuntimeDown | FailureKind::Unknown, _) => error.into(),
        _ => failure(with_causes(&error)),
    }
}

/// A refusal in the words that the kubelet has of containerd's CRI (`PullImage` of `internal/cri/server/images/image_pull.go`), by
/// which people and tools tell such failures apart. It leaves out a code that says nothing (`pullImageV1` of
/// `k8s.io/cri-client/pkg/remote_image.go`).
fn refused(reference: &str, code: Code, message: &str) -> String {
    let code = match code {
        Code::Unknown => String::new(),
        Code::Cancelled => "rpc error: code = Canceled desc = ".to_owned(),
        code => format!("rpc error: code = {code:?} desc = "),
    };
    format!("{code}failed to pull and unpack image {reference:?}: {message}")
}

fn wire(platform: platform::Platform) -> Platform {
    let platform::Platform { os, architecture, variant } = platform;
    Platform { os, architecture, variant, ..Platform::default() }
}

fn managed() -> HashMap<String, String> {
    HashMap::from([(labels::IMAGE.to_owned(), labels::MANAGED.to_owned())])
}

/// Makes the records by which CRI knows an image: its name, its digest, which is returned, and its id.
async fn name_it(host: &Host, name: &ImageName, found: &Located) -> Result<String, Failure> {
    let target = found.record.target.clone().unwrap_or_default();
    let digest = format!("{}@{}", name.repository(), target.digest);
    for name in [found.record.name.clone(), digest.clone(), found.info.id.clone()] {
        put(host, name, target.clone()).await?;
    }
    Ok(digest)
}

async fn put(host: &Host, name: String, target: Descriptor) -> Result<(), Failure> {
    let image =
        Image { name: name.clone(), labels: managed(), target: Some(target.clone()), ..Image::default() };
    let create = CreateImageRequest { image: Some(image.clone()), source_date_epoch: None };
    let mut client = host.containerd.images();
    match host.containerd.call("name image", &name, client.create(create)).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(error.into()),
    }
    let label = format!("labels.{}", labels::IMAGE);
    let update = UpdateImageRequest {
        image: Some(image),
        update_mask: Some(FieldMask { paths: vec!["target".to_owned(), label] }),
        source_date_epoch: None,
    };
    let mut client = host.containerd.images();
    host.containerd.call("name image", &name, client.update(update)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_pull_is_looked_for_where_nobody_has_said_it() {
        use FailureKind::{Config, ImagePull, RuntimeDown, Transient, Unknown};
        for (kind, expected) in
            [(ImagePull, false), (Config, false), (Transient, false), (Unknown, true), (RuntimeDown, true)]
        {
            assert_eq!(may_have_come(&Failure::new(kind, "why".to_owned())), expected, "{kind:?}");
        }
        for (before, found, is_recorded, expected) in [
            (None, Some(None), false, Came::Nothing),
            (Some("old"), Some(None), false, Came::Nothing),
            (Some("old"), Some(Some("old")), false, Came::Nothing),
            (Some("old"), Some(Some("new")), false, Came::Perhaps),
            (None, Some(Some("new")), false, Came::Perhaps),
            // A later pull brought it.
            (Some("old"), Some(Some("new")), true, Came::Nothing),
            (None, Some(Some("new")), true, Came::Nothing),
            // What is there cannot be read.
            (None, None, false, Came::Perhaps),
            (Some("old"), None, false, Came::Perhaps),
        ] {
            assert_eq!(came_to(found, before, is_recorded), expected, "{before:?} {found:?} {is_recorded}");
        }
    }

    /// A registry that does not answer is told by containerd with the code of a call that took too long.
    #[test]
    fn where_containerd_has_answered_nothing_came() {
        let answered = |code| Cause::Refused { code, message: "dial: i/o timeout".to_owned() };
        for (cause, kind, text) in [
            (
                answered(Code::DeadlineExceeded),
                FailureKind::ImagePull,
                "rpc error: code = DeadlineExceeded desc = failed to pull and unpack image \"r/i:1\": dial: i/o timeout",
            ),
            (
                answered(Code::Unknown),
                FailureKind::ImagePull,
                "failed to pull and unpack image \"r/i:1\": dial: i/o timeout",
            ),
            (Cause::Timeout(Duration::from_secs(2)), FailureKind::Unknown, ""),
        ] {
            let failed = not_pulled("r/i:1", CallError::new("pull image", "r/i:1", cause));
            assert_eq!(failed.kind, kind, "{}", failed.message);
            assert!(text.is_empty() || failed.message == text, "{}", failed.message);
            assert_eq!(may_have_come(&failed), kind == FailureKind::Unknown);
        }
    }

    #[test]
    fn what_several_credentials_failed_with_is_told_together() {
        for (texts, expected) in [
            (&["a"][..], Some("a")),
            (&["a", "b", "a"], Some("[a, b]")),
            (&["a", "a"], Some("a")),
            (&[], None),
        ] {
            let failed = texts.iter().map(|text| failure((*text).to_owned())).collect();
            let told = together(failed).map(|failure| failure.message);
            assert_eq!(told.as_deref(), expected, "{texts:?}");
        }
    }
}
