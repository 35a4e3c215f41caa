# What an enclave needs in one folder; `qualify bundle verify` accepts it without a network.
{
  bootstrap,
  app,
  images,
  source,
}:
let
  carried = builtins.path {
    name = "qualify-carried";
    path = source;
    filter =
      place: _:
      let
        relative = builtins.substring (builtins.stringLength (toString source) + 1) (-1) (toString place);
      in
      builtins.elem (builtins.head (builtins.split "/" relative)) [
        "LICENSE"
        "corpora"
        "docs"
        "locks"
        "manifests"
      ];
  };

  make =
    name: layouts:
    bootstrap.shell {
      name = "bundle-${name}";
      inherit carried layouts;
      inherit (app) environment project;
      script = ''
        export PYTHONPATH=$project/src PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8 HOME=$NIX_BUILD_TOP
        set -- --to $out
        for layout in $layouts; do set -- "$@" --image $layout; done
        $environment/usr/bin/python3.13 -P -m qualify --project $carried bundle make ${name} "$@"
      '';
    };
in
{
  bundle-offline =
    make "offline" [
      images.packages.image-runner
      images.packages.image-llama-cpp-cpu
    ]
    // {
      meta.description = "Offline bundle: the runner and the llama.cpp image, locks, manifests, corpora, documentation";
    };
}
