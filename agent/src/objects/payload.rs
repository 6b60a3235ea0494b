//! The files of a volume, from what objects and the pod have.
//!
//! Source: `MakePayload` of `pkg/volume/configmap/configmap.go` and `pkg/volume/secret/secret.go`, `CollectData` of
//! `pkg/volume/downwardapi/downwardapi.go`, `collectData` of `pkg/volume/projected/projected.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    config::NodeConfig,
    derived::{
        content::fs_user,
        downward::{self, DownwardError},
        references::Named,
    },
    spec::{
        ContentVolume, DownwardFile, DownwardSource, ObjectFiles, ObjectKind, Pod, Projection, TokenFile,
    },
};
use futures::stream::{FuturesOrdered, StreamExt as _};

use super::{
    Content, ObjectError, Objects,
    asked::{ask_more, read},
    tokens::{Token, TokenKey},
};
use crate::{hidden::Hidden, volumes::ContentFile};

/// Most bytes in one volume: as many as 64 objects of the largest size have. The kubelet has no bound; a message to a worker holds
/// this much as base64.
const BYTES_MAX: usize = 64 << 20;

/// Mode of a token that only its owner reads.
const TOKEN_MODE: u32 = 0o600;

/// The files of a volume.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// By path: of two with one path the later one is seen.
    pub files: Vec<ContentFile>,
    /// When a token among them is to be renewed.
    pub again_in: Option<Duration>,
}

/// Reads the objects that a volume shows, and makes its files.
///
/// # Errors
/// Everything that is missing.
pub async fn gather(
    objects: &Objects,
    node: &NodeConfig,
    pod: &Pod,
    volume: &ContentVolume,
) -> Result<Payload, ObjectError> {
    let (mut again_in, mut errors) = (None, Vec::new());
    let mut told = Told { left: BYTES_MAX, fields: BTreeMap::new() };
    // A pod may name one object as often as it likes.
    let mut shown: BTreeMap<String, ContentFile> = BTreeMap::new();
    let (mut sources, mut tokens, mut asked) =
        (volume.sources.iter(), BTreeSet::new(), FuturesOrdered::new());
    loop {
        let questions = sources.by_ref().map(|source| ask(objects, pod, source, is_new(source, &mut tokens)));
        ask_more(&mut asked, questions);
        let Some(asked) = asked.next().await else { break };
        let files = match asked {
            Asked::Object(wanted, found) => {
                found.and_then(|content| of_object(wanted, content.as_deref(), volume.default_mode))
            }
            Asked::Downward(wanted) => of_pod(node, pod, wanted, volume.default_mode, &mut told),
            Asked::Token(wanted, found) => {
                let found = match found {
                    Some(found) => found,
                    None => token(objects, pod, wanted).await,
                };
                found.map(|token| {
                    again_in = again_in.into_iter().chain([token.again_in]).min();
                    vec![of_token(pod, wanted, volume.default_mode, &token)]
                })
            }
        };
        match files {
            Ok(files) => shown.extend(files.into_iter().map(|file| (file.path.clone(), file))),
            Err(error @ ObjectError::TooLarge { .. }) => return Err(error),
            Err(error) => errors.push(error),
        }
        if shown.values().map(size).sum::<usize>() > BYTES_MAX {
            return Err(ObjectError::TooLarge { max: BYTES_MAX });
        }
    }
    ObjectError::all(errors)?;
    Ok(Payload { files: shown.into_values().collect(), again_in })
}

/// A source, with what it takes of the API server.
enum Asked<'a> {
    Object(&'a ObjectFiles, Result<Option<Arc<Content>>, ObjectError>),
    Downward(&'a [DownwardFile]),
    /// `None`: the same token is asked for already, and is known when it is this one's turn.
    Token(&'a TokenFile, Option<Result<Token, ObjectError>>),
}

/// Whether no source before it asks for the same token.
fn is_new<'a>(source: &'a Projection, tokens: &mut BTreeSet<(Option<&'a str>, i64)>) -> bool {
    match source {
        Projection::Token(wanted) => tokens.insert((wanted.audience.as_deref(), wanted.seconds)),
        Projection::Object(_) | Projection::Downward(_) => true,
    }
}

async fn ask<'a>(objects: &Objects, pod: &Pod, source: &'a Projection, is_new: bool) -> Asked<'a> {
    match source {
        Projection::Object(wanted) => {
            let ObjectFiles { kind, name, optional, .. } = wanted;
            let named = Named { kind: *kind, name, optional: *optional };
            Asked::Object(wanted, read(objects, pod, named).await)
        }
        Projection::Downward(wanted) => Asked::Downward(wanted),
        Projection::Token(wanted) if is_new => Asked::Token(wanted, Some(token(objects, pod, wanted).await)),
        Projection::Token(wanted) => Asked::Token(wanted, None),
    }
}

fn size(file: &ContentFile) -> usize {
    file.bytes.len() + file.path.len()
}

fn of_object(
    wanted: &ObjectFiles,
    content: Option<&Content>,
    default_mode: u32,
) -> Result<Vec<ContentFile>, ObjectError> {
    let file = |path: &str, mode: Option<u32>, bytes: &Hidden| ContentFile {
        path: path.to_owned(),
        mode: mode.unwrap_or(default_mode),
        owner: None,
        bytes: bytes.clone(),
    };
    if wanted.items.is_empty() {
        let all = content.into_iter().flat_map(|content| &content.data);
        return Ok(all.map(|(key, bytes)| file(key, None, bytes)).collect());
    }
    let (mut files, mut bytes_so_far) = (Vec::new(), 0);
    for item in &wanted.items {
        match content.and_then(|content| content.data.get(&item.key)) {
            Some(bytes) if bytes_so_far + bytes.len() > BYTES_MAX => {
                return Err(ObjectError::TooLarge { max: BYTES_MAX });
            }
            Some(bytes) => {
                bytes_so_far += bytes.len();
                files.push(file(&item.path, item.mode, bytes));
            }
            None if wanted.optional => {}
            None => {
                let key = item.key.clone();
                return Err(match wanted.kind {
                    ObjectKind::ConfigMap => ObjectError::NoConfigKey { key },
                    ObjectKind::Secret => ObjectError::NoSecretKey { key },
                });
            }
        }
    }
    Ok(files)
}

/// What the pod tells of itself in one volume.
struct Told {
    /// Bytes that there may be yet. Each file counts, also one that is not seen.
    left: usize,
    /// Its fields, each made once: files that show the same share it.
    fields: BTreeMap<String, Hidden>,
}

impl Told {
    fn field(&mut self, field: &str, pod: &Pod, node: &NodeConfig) -> Result<Hidden, DownwardError> {
        if let Some(known) = self.fields.get(field) {
            return Ok(known.clone());
        }
        let bytes = Hidden::new(downward::field(field, pod, node, &[])?.into_bytes());
        self.fields.insert(field.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

fn of_pod(
    node: &NodeConfig,
    pod: &Pod,
    wanted: &[DownwardFile],
    default_mode: u32,
    told: &mut Told,
) -> Result<Vec<ContentFile>, ObjectError> {
    let mut files = Vec::new();
    let mut errors = Vec::new();
    for DownwardFile { path, mode, source } in wanted {
        let bytes = match (source, pod.all_containers().next()) {
            (DownwardSource::Field(field), _) => told.field(field, pod, node),
            (DownwardSource::Resource(selector), Some(any)) => {
                let text = downward::resource_in_file(selector, pod, any, node);
                text.map(|text| Hidden::new(text.into_bytes()))
            }
            // A pod has a container.
            (DownwardSource::Resource(_), None) => Ok(Hidden::default()),
        };
        match bytes {
            Ok(bytes) => {
                let too_large = ObjectError::TooLarge { max: BYTES_MAX };
                told.left = told.left.checked_sub(path.len() + bytes.len()).ok_or(too_large)?;
                files.push(ContentFile {
                    path: path.clone(),
                    mode: mode.unwrap_or(default_mode),
                    owner: None,
                    bytes,
                });
            }
            Err(error) => errors.push(ObjectError::from(error)),
        }
    }
    ObjectError::all(errors).map(|()| files)
}

async fn token(objects: &Objects, pod: &Pod, wanted: &TokenFile) -> Result<Token, ObjectError> {
    let Some(tokens) = objects.tokens() else {
        return Err(ObjectError::NoCluster { kind: "service account", name: pod.service_account.clone() });
    };
    let TokenFile { audience, seconds, .. } = wanted;
    let key = TokenKey {
        pod: pod.uid.clone(),
        name: pod.name.clone(),
        account: pod.service_account.clone(),
        audience: audience.clone(),
        seconds: *seconds,
    };
    tokens.get(&key).await
}

/// Where one user or group is to read it, nobody else may.
fn of_token(pod: &Pod, wanted: &TokenFile, default_mode: u32, token: &Token) -> ContentFile {
    let owner = fs_user(pod);
    let is_owned = owner.is_some() || pod.security.fs_group.is_some();
    ContentFile {
        path: wanted.path.clone(),
        mode: if is_owned { TOKEN_MODE } else { default_mode },
        owner,
        bytes: Hidden::clone(&token.text),
    }
}

#[cfg(test)]
mod tests;
