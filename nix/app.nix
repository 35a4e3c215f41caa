# The qualify command in the Nix store: the files of the runner image without a container.
{
  bootstrap,
  step,
  runner,
  source,
}:
let
  # Debian's packages and the wheels. Our own code is not in it, so that a change of it builds nothing
  # here.
  environment = step.run {
    name = "qualify-environment";
    builder = "store_tree";
    spec = {
      layers = runner;
      patchelf = bootstrap.patchelf.path;
    };
  };

  project = builtins.path {
    name = "qualify-project";
    path = source;
    filter =
      place: type:
      let
        relative = builtins.substring (builtins.stringLength (toString source) + 1) (-1) (toString place);
        top = builtins.head (builtins.split "/" relative);
        name = baseNameOf place;
      in
      builtins.elem top [
        "LICENSE"
        "corpora"
        "locks"
        "manifests"
        "src"
      ]
      && name != "__pycache__"
      && builtins.match ".*\\.py[co]" name == null;
  };
in
{
  inherit environment project;

  qualify =
    bootstrap.shell {
      name = "qualify";
      inherit environment project;
      start = ./start.py;
      script = ''
        mkdir -p $out/bin
        {
          echo "#!$environment/usr/bin/python3.13 -IB"
          sed -e "s|@project@|$project|" $start
        } > $out/bin/qualify
        chmod 0755 $out/bin/qualify
      '';
    }
    // {
      meta.description = "The qualify command";
    };
}
