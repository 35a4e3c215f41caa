# The layers of images, each from pinned files or from one part of the source tree.
{
  pins,
  step,
  wheels,
  source,
}:
let
  inherit (builtins)
    baseNameOf
    elem
    filter
    match
    path
    ;

  names = map (package: package.name);
  deb = package: { inherit (package) name version path; };

  debian =
    {
      title,
      packages,
      base,
    }:
    layer "debian_layer" "layer-${title}" {
      inherit title base;
      packages = map deb packages;
    };

  base = pins.debian.closure "base";

  # A layer is a derivation that knows its title.
  layer =
    builder: name: spec:
    step.run { inherit name builder spec; } // { inherit (spec) title; };

  # Source files without what tools leave beside them.
  part =
    name:
    path {
      name = "qualify-${name}";
      path = source + "/${name}";
      filter = place: _: baseNameOf place != "__pycache__" && match ".*\\.py[co]" (baseNameOf place) == null;
    };
in
{
  inherit part;

  # Shared by every image: libc, Python, certificates, accounts.
  base = debian {
    title = "base";
    packages = base;
    base = true;
  };

  # What a closure adds to the base; null when it adds nothing.
  system =
    closure:
    let
      packages = pins.debian.closure closure;
      missing = filter (name: !(elem name (names packages))) (names base);
      more = filter (package: !(elem package.name (names base))) packages;
    in
    if missing != [ ] then
      throw "locks/debian.json: closure ${closure} lacks ${builtins.head missing} of the base closure"
    else if more == [ ] then
      null
    else
      debian {
        title = "system-${closure}";
        packages = more;
        base = false;
      };

  # One layer for each group of packages, in order.
  python =
    {
      name,
      sets,
      groups,
    }:
    map (
      group:
      layer "wheel_layer" "layer-${name}-${group.title}" {
        inherit (group) title;
        wheels = map (package: wheels.pin (wheels.require package)) group.packages;
      }
    ) (wheels.deal "image ${name}" groups (pins.merge sets));

  project =
    { command }:
    layer "project_layer" "layer-project" {
      inherit command;
      title = "project";
      parts = {
        LICENSE = part "LICENSE";
        corpora = part "corpora";
        locks = part "locks";
        manifests = part "manifests";
        src = part "src";
      };
    };
}
