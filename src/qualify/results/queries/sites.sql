-- The ledger here (site 0) and those merged from other sites, with what they hold.
WITH trials AS (
    SELECT site, count(*) AS finished FROM finished GROUP BY site
), open_ones AS (
    SELECT site, count(*) AS unfinished FROM unfinished GROUP BY site
), times AS (
    SELECT site, min(time) AS first, max(time) AS last FROM entries GROUP BY site
)
SELECT s.site, s.id, s.ledger_count AS entries, coalesce(t.finished, 0) AS finished,
       coalesce(o.unfinished, 0) AS unfinished, e.first, e.last
FROM sites s LEFT JOIN trials t USING (site) LEFT JOIN open_ones o USING (site)
LEFT JOIN times e USING (site)
ORDER BY s.site;
