# The pinned files that locks/ names, as fixed-output paths of the Nix store.
#
# A fixed-output path depends on name and hash alone, so `qualify depot seed` (or DEPOT/seed) makes it
# valid without a download. The URL below is never looked at then; on a machine that has not been
# seeded it says what is missing.
{ system, locks }:
let
  inherit (builtins)
    concatMap
    concatStringsSep
    elem
    filter
    fromJSON
    head
    isString
    length
    listToAttrs
    readFile
    split
    ;

  # The same rule as in `qualify depot`: what a store name may not hold becomes a dash.
  storeName = name: concatStringsSep "-" (filter isString (split "[^A-Za-z0-9+._?=-]" name));

  fetch =
    { file, sha256, ... }:
    derivation {
      name = storeName file;
      system = "builtin";
      builder = "builtin:fetchurl";
      url = "preseed:${file}";
      outputHash = sha256;
      outputHashAlgo = "sha256";
      outputHashMode = "flat";
      executable = false;
      unpack = false;
      preferLocalBuild = true;
    };

  readLock =
    set: schema:
    let
      lock = fromJSON (readFile (locks + "/${set}.json"));
    in
    if lock.schema == schema then
      lock
    else
      throw "locks/${set}.json: is of schema ${lock.schema}, not ${schema}";

  # `path` is where a file lies in the store, `pool` where it lies in an archive of Debian.
  withFile =
    pin:
    pin
    // {
      path = fetch pin;
      pool = pin.path or null;
    };

  pythonSet =
    set:
    let
      lock = readLock set "qualify-lock/1";
      one =
        package:
        if length package.files == 1 then
          withFile (
            head package.files
            // {
              inherit (package) name version;
              inherit set;
            }
          )
        else
          throw "locks/${set}.json: ${package.name} has ${toString (length package.files)} files; an image needs exactly one";
    in
    {
      inherit set;
      inherit (lock) digest;
      packages = map one lock.packages;
    };

  debianLock = readLock "debian" "qualify-debian-lock/1";
  debianByName = listToAttrs (
    map (package: {
      inherit (package) name;
      value = withFile package;
    }) debianLock.packages
  );
in
{
  inherit storeName fetch pythonSet;

  debian = {
    inherit (debianLock) digest;
    closures = builtins.attrNames debianLock.closures;
    busybox = debianLock.bootstrap.busybox.nar_sha256;
    package = name: debianByName.${name} or (throw "locks/debian.json: pins no package ${name}");
    closure =
      name:
      map (package: debianByName.${package} or (throw "locks/debian.json: closure ${name} names ${package}, which is not pinned")) (
        debianLock.closures.${name} or (throw "locks/debian.json: has no closure ${name}")
      ).packages;
  };

  # The packages of several sets, each file once.
  merge =
    sets:
    let
      all = concatMap (set: set.packages) sets;
      step =
        seen: package:
        if elem package.file seen.files then
          seen
        else if seen.versions ? ${package.name} then
          throw "${package.name} is pinned twice: ${seen.versions.${package.name}} and ${package.version} (locks/${package.set}.json)"
        else
          {
            files = seen.files ++ [ package.file ];
            versions = seen.versions // {
              ${package.name} = package.version;
            };
            packages = seen.packages ++ [ package ];
          };
    in
    (builtins.foldl' step {
      files = [ ];
      versions = { };
      packages = [ ];
    } all).packages;
}
